//! The pages of health and metrics, over the plainest of HTTP.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::TEST_TIMEOUT;

/// Asks for a page; status and body. By HTTP/1.0, so that the body comes as it is and the end of the connection ends it.
///
/// # Panics
/// When there is no answer.
#[must_use]
pub fn page(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect_timeout(&address, TEST_TIMEOUT).expect("the pages are served");
    stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a bound");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: clad\r\n\r\n").expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status line");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

/// All samples of `/metrics`, by name with labels.
///
/// # Panics
/// When there is no answer.
#[must_use]
pub fn metrics(address: SocketAddr) -> BTreeMap<String, f64> {
    let (status, body) = page(address, "/metrics");
    assert_eq!(status, 200, "{body}");
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.rsplit_once(' ')).map(|(name, value)| (name.to_owned(), number(value))).collect()
}

fn number(text: &str) -> f64 {
    text.trim().parse().unwrap_or(f64::NAN)
}
