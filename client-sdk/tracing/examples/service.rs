//! A small web service that logs with `tracing`: a span for each request, fields with their types, a guard at the end.
//!
//! `cargo run -p clad-tracing --example service`, maybe with ` -- ADDRESS`, then `curl 127.0.0.1:8080/hello`, and `clactl tail`.

use std::io::{BufRead, BufReader, Result, Write};
use std::net::{TcpListener, TcpStream};

use tracing::{error, info, info_span, warn};

/// The longest first line that is read.
const REQUEST_BYTES_MAX: u64 = 8 * 1024;

fn main() -> Result<()> {
    // Where no clad runs, this warns once and logs to stderr.
    let _guard = clad_tracing::init();
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    serve(&TcpListener::bind(address)?, usize::MAX)
}

/// Answers so many requests.
pub(crate) fn serve(listener: &TcpListener, requests: usize) -> Result<()> {
    info!(address = %listener.local_addr()?, "serving");
    for (number, stream) in listener.incoming().take(requests).enumerate() {
        let request = info_span!("request", number, path = tracing::field::Empty).entered();
        match stream.and_then(answer) {
            Ok((path, status)) => {
                request.record("path", path);
                info!(status, "answered");
            }
            Err(error) => error!(error = &error as &dyn std::error::Error, "the client went away"),
        }
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> Result<(String, u16)> {
    let mut line = String::new();
    BufReader::new(std::io::Read::take(&stream, REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let path = line.split_whitespace().nth(1).unwrap_or_default().to_owned();
    let (status, text) = match path.as_str() {
        "/hello" => (200, "hello\n"),
        _ => {
            warn!(line = line.trim_end(), "no such page");
            (404, "no such page\n")
        }
    };
    write!(stream, "HTTP/1.0 {status} -\r\ncontent-length: {}\r\n\r\n{text}", text.len())?;
    Ok((path, status))
}
