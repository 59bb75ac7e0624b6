//! The example, as a test.

mod support;

#[path = "../examples/service.rs"]
#[allow(dead_code)] // its `main` takes a port of this host
mod service;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use clad_tracing::Setup;
use support::*;
use tracing_subscriber::{layer::SubscriberExt, registry};

#[test]
fn a_service_logs_its_requests() {
    let daemon = Daemon::new();
    let (layer, guard) = Setup::new().server(daemon.address.clone()).component("service").layer().expect("a layer");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let clients = std::thread::spawn(move || {
        ["/hello", "/other"].map(|path| {
            let mut stream = TcpStream::connect(address).expect("connected");
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("sent");
            let mut answer = String::new();
            // The other end may close with bytes of ours unread.
            let _ = stream.read_to_string(&mut answer);
            answer
        })
    });
    tracing::subscriber::with_default(registry().with(layer), || service::serve(&listener, 2).expect("served"));
    let answers = clients.join().expect("answers");
    assert!(answers[0].ends_with("hello\n") && answers[1].starts_with("HTTP/1.0 404"), "{answers:?}");
    drop(guard);
    let records = daemon.records();
    let all: Vec<_> = records.iter().map(body).collect();
    assert_eq!(all, ["serving", "answered", "no such page", "answered"]);
    let (first, last) = (&records[1], &records[3]);
    assert_eq!((int(first, "status"), int(last, "status")), (200, 404));
    let span = spans(first)[0];
    let path = span.iter().find(|pair| pair.key == "path").and_then(|pair| pair.value.clone());
    assert_eq!(path, Some(clad_client::AnyValue::String("/hello".into())));
}
