//! Plays `vectors/conversations/`: the server's side by hand over a Unix socket, the client's side with this crate.
//! `vectors/README.md` describes the steps; the same files are played against the clients in other languages.

use clad_client::*;
use clad_proto::{LogId, ProducerId, crc32c};
use regex::Regex;
use serde_json::Value;
use std::{collections::HashMap, fs, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::watch,
    task::JoinHandle,
};

type Played = Result<(), String>;

const PING: u8 = 0x04;
const BYE: u8 = 0x07;

/// The longest wait of a step.
const STEP_SECONDS: u64 = 30;

fn number(step: &Value, key: &str) -> u64 {
    step[key].as_u64().unwrap_or(0)
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex digits")).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn id(step: &Value, key: &str) -> [u8; 16] {
    step[key].as_str().map_or([0; 16], |text| unhex(text).try_into().expect("16 bytes"))
}

fn level(step: &Value) -> AckLevel {
    AckLevel::from_code(number(step, "level") as u8).expect("a level")
}

async fn soon<T>(future: impl Future<Output = T>) -> Result<T, String> {
    tokio::time::timeout(Duration::from_secs(STEP_SECONDS), future).await.map_err(|_| "it hangs".to_owned())
}

/// A frame of the client.
#[derive(Clone)]
struct Came {
    kind: u8,
    request_id: [u8; 4],
    body: Vec<u8>,
}

struct Server {
    listener: UnixListener,
    stream: Option<UnixStream>,
    /// Looked at and not taken.
    peeked: Option<Came>,
    /// Producer id and epoch.
    producer: Option<[u8; 20]>,
    /// Of the last FLUSH or READ.
    request_id: [u8; 4],
}

impl Server {
    /// The next frame but PINGs, which are answered; nothing when the client has closed.
    async fn next(&mut self) -> Result<Option<Came>, String> {
        if let Some(came) = self.peeked.take() {
            return Ok(Some(came));
        }
        loop {
            let stream = self.stream.as_mut().ok_or("there is no connection")?;
            let mut header = [0; 16];
            if stream.read_exact(&mut header).await.is_err() {
                return Ok(None);
            }
            let len = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
            let mut body = vec![0; len as usize];
            if header[0] != 0xC1 || crc32c(&header[..12]).to_le_bytes() != header[12..] {
                return Err(format!("not a header: {}", hex(&header)));
            }
            stream.read_exact(&mut body).await.map_err(|error| error.to_string())?;
            let request_id = [header[8], header[9], header[10], header[11]];
            if header[1] != PING {
                return Ok(Some(Came { kind: header[1], request_id, body }));
            }
            header[1] = 0x46;
            let crc = crc32c(&header[..12]).to_le_bytes();
            header[12..].copy_from_slice(&crc);
            stream.write_all(&[&header[..], &body].concat()).await.map_err(|error| error.to_string())?;
        }
    }

    fn fits(step: &Value, came: &Came) -> bool {
        let kind = match step["frame"].as_str().expect("a frame") {
            "HELLO" => 1,
            "APPEND" => 2,
            "FLUSH" => 3,
            "READ" => 5,
            "BYE" => BYE,
            other => panic!("{other} is not expected of a client"),
        };
        let pattern = format!("^(?:{})$", step["body"].as_str().expect("a pattern"));
        kind == came.kind && Regex::new(&pattern).expect("a pattern").is_match(&hex(&came.body))
    }

    async fn step(&mut self, step: &Value, client: &mut watch::Receiver<bool>) -> Played {
        match step["do"].as_str().expect("what to do") {
            "accept" => {
                self.stream = Some(soon(self.listener.accept()).await?.map_err(|error| error.to_string())?.0);
                self.peeked = None;
            }
            "expect" => {
                let came = soon(self.next()).await??.ok_or("the client hung up")?;
                if !Self::fits(step, &came) {
                    return Err(format!("frame 0x{:02x} {}", came.kind, hex(&came.body)));
                }
                if came.kind == 1 {
                    return self.greeted(&came.body);
                }
                self.request_id = came.request_id;
            }
            "send" => {
                let mut bytes = unhex(step["hex"].as_str().expect("hex digits"));
                self.patch(step, &mut bytes);
                let stream = self.stream.as_mut().ok_or("there is no connection")?;
                soon(stream.write_all(&bytes)).await?.map_err(|error| error.to_string())?;
            }
            "cut" => self.stream = None,
            "end" => {
                if let Some(came) = soon(self.next()).await?? {
                    return Err(format!("frame 0x{:02x} where the client closes", came.kind));
                }
                self.stream = None;
            }
            "nothing" => {
                let wait = Duration::from_millis(number(step, "ms"));
                let came = match self.stream {
                    Some(_) => tokio::time::timeout(wait, self.next())
                        .await
                        .is_ok_and(|came| came.is_ok_and(|came| came.is_some())),
                    None => tokio::time::timeout(wait, self.listener.accept()).await.is_ok(),
                };
                if came {
                    return Err("something came".to_owned());
                }
            }
            "optional" => {
                let steps = step["steps"].as_array().expect("steps");
                let came = tokio::select! {
                    came = soon(self.next()) => came??,
                    _ = client.wait_for(|done| *done) => return Ok(()),
                };
                let fits = came.as_ref().is_some_and(|came| Self::fits(&steps[0], came));
                self.peeked = came;
                for step in steps.iter().filter(|_| fits) {
                    Box::pin(self.step(step, client)).await?;
                }
            }
            other => panic!("a server does not do {other}"),
        }
        Ok(())
    }

    /// A client that comes back is the same producer.
    fn greeted(&mut self, hello: &[u8]) -> Played {
        let mut said: [u8; 20] = hello[4..24].try_into().expect("20 bytes");
        if said[..16] == [0; 16] {
            said[..16].fill(0xB2);
        }
        match self.producer.replace(said) {
            Some(before) if before != said && hello[24] & 1 != 0 => Err("another producer came back".to_owned()),
            _ => Ok(()),
        }
    }

    fn patch(&self, step: &Value, bytes: &mut [u8]) {
        match step["patch"].as_str() {
            Some("producer") => {
                bytes[56..76].copy_from_slice(&self.producer.expect("HELLO came first"));
                let end = bytes.len() - 4;
                let crc = crc32c(&bytes[16..end]).to_le_bytes();
                bytes[end..].copy_from_slice(&crc);
            }
            Some("request") => {
                bytes[8..12].copy_from_slice(&self.request_id);
                let crc = crc32c(&bytes[..12]).to_le_bytes();
                bytes[12..16].copy_from_slice(&crc);
            }
            _ => {}
        }
    }

    async fn play(mut self, steps: &[Value], done: watch::Sender<bool>, mut client: watch::Receiver<bool>) -> Played {
        for (at, step) in steps.iter().enumerate() {
            self.step(step, &mut client).await.map_err(|what| format!("server step {at}: {what}; {step}"))?;
        }
        done.send_replace(true);
        while self.stream.is_some() {
            match soon(self.next()).await?? {
                None => break,
                Some(came) if came.kind == BYE => {}
                Some(came) => return Err(format!("frame 0x{:02x} {} after the last step", came.kind, hex(&came.body))),
            }
        }
        Ok(())
    }
}

/// Code and whether it may be written; or the receipt.
type Answer = Result<Receipt, (u64, bool)>;

struct Client {
    address: Address,
    producer: Option<Producer>,
    tickets: HashMap<String, JoinHandle<Answer>>,
    reader: Option<Result<Reader, ReadError>>,
    /// Records that an event gave, and no step has taken.
    read: std::collections::VecDeque<(u64, String)>,
}

fn said(error: &AppendError) -> (u64, bool) {
    (error.code().map_or(0, |code| code.number().into()), error.maybe_written())
}

impl Client {
    fn new(address: Address, options: &Value, reads: bool) -> Self {
        let ms = Duration::from_millis;
        let mut builder = Producer::builder(address.clone()).component("test").backoff(ms(1), ms(20));
        if !options["producer_id"].is_null() {
            let producer = ProducerId::from_bytes(id(options, "producer_id"));
            builder = builder.producer(producer, number(options, "producer_epoch") as u32);
        }
        let producer = (!reads).then(|| builder.start().expect("it starts"));
        Self { address, producer, tickets: HashMap::new(), reader: None, read: Default::default() }
    }

    fn append(&self, step: &Value) -> JoinHandle<Answer> {
        let producer = self.producer.as_ref().expect("not closed");
        let record = Record::text(1, 9, step["text"].as_str().expect("a text"));
        let room = producer.try_reserve(100).map_err(SendError::from);
        let ticket = room.and_then(|room| Ok(room.at(level(step)).submit(&record)?));
        tokio::spawn(async move {
            let error = match ticket {
                Ok(ticket) => return ticket.await.map_err(|error| said(&error)),
                Err(SendError::Reserve(ReserveError::Ended(error)) | SendError::Submit(SubmitError::Ended(error))) => {
                    error
                }
                Err(other) => panic!("{other}"),
            };
            Err(said(&error))
        })
    }

    async fn step(&mut self, step: &Value) -> Played {
        let ticket = step["ticket"].as_str().unwrap_or_default();
        match step["do"].as_str().expect("what to do") {
            "append" => {
                let handle = self.append(step);
                self.tickets.insert(ticket.to_owned(), handle);
            }
            "wait" => {
                let handle = self.tickets.get_mut(ticket).expect("a ticket");
                let answer = soon(handle).await?.map_err(|error| error.to_string())?;
                return match answer {
                    Ok(receipt) if step["code"].is_null() => {
                        let fits = receipt.first_offset == step["offset"].as_u64()
                            && step["epoch"].as_u64().is_none_or(|epoch| epoch == u64::from(receipt.epoch));
                        if fits { Ok(()) } else { Err(format!("{receipt:?}")) }
                    }
                    Err(error)
                        if Some(error.0) == step["code"].as_u64()
                            && Some(error.1) == step["maybe_written"].as_bool() =>
                    {
                        Ok(())
                    }
                    other => Err(format!("{other:?}")),
                };
            }
            "pending" if self.tickets[ticket].is_finished() => return Err("it has its outcome".to_owned()),
            "pending" => {}
            "flush" => {
                let producer = self.producer.as_ref().expect("not closed");
                let ended = soon(producer.flush(level(step))).await?.map_err(|error| said(&error));
                let code = step["code"].as_u64().map(|code| (code, step["maybe_written"] == true));
                if ended.err() != code {
                    return Err(format!("{ended:?}"));
                }
            }
            "close" => {
                let producer = self.producer.take().expect("not closed");
                tokio::spawn(producer.close());
            }
            "read" => self.reader = Some(soon(self.open(step)).await?),
            "next" => return soon(self.check_next(step)).await?,
            other => panic!("a client does not do {other}"),
        }
        Ok(())
    }

    async fn open(&self, step: &Value) -> Result<Reader, ReadError> {
        let offset = number(step, "offset");
        let start = match number(step, "start") {
            1 => Start::Offset(offset),
            2 => Start::Cursor(Cursor {
                log_id: LogId::from_bytes(id(step, "log_id")),
                epoch: number(step, "epoch") as u32,
                offset,
            }),
            _ => Start::Tail(offset),
        };
        let ms = Duration::from_millis;
        let follow = number(step, "flags") & 1 != 0;
        let mut builder = Reader::builder(self.address.clone());
        if let Some(least) = step["filter"]["min_severity"].as_i64() {
            builder = builder.filter(Filter::new().severity_at_least(Severity(least as i32)));
        }
        builder.from(start).follow(follow).level(level(step)).backoff(ms(1), ms(20)).open().await
    }

    async fn check_next(&mut self, step: &Value) -> Played {
        let fits = match self.next().await {
            Ok(Read::Record(offset, text)) => {
                step["offset"].as_u64() == Some(offset) && step["text"].as_str() == Some(&*text)
            }
            Ok(Read::Gap(from, to)) => step["gap"] == serde_json::json!([from, to]),
            Ok(Read::End) => step["end"] == true,
            Err(error) => {
                let code = match &error {
                    ReadError::CursorAbandoned { .. } => 21,
                    ReadError::CursorUnknown { .. } => 22,
                    ReadError::Refused(error) => error.code.number().into(),
                    _ => 0,
                };
                let fits = step["error"] == true || step["code"].as_u64() == Some(code);
                return if fits { Ok(()) } else { Err(format!("{error:?}")) };
            }
        };
        if fits { Ok(()) } else { Err("something else was read".to_owned()) }
    }

    async fn next(&mut self) -> Result<Read, ReadError> {
        loop {
            if let Some((offset, text)) = self.read.pop_front() {
                return Ok(Read::Record(offset, text));
            }
            let reader = match self.reader.as_mut().expect("a read") {
                Ok(reader) => reader,
                Err(error) => return Err(error.clone()),
            };
            match reader.next().await? {
                Some(Event::Records(chunk)) => self.read.extend(chunk.records().map(|(offset, record)| {
                    (offset, String::from_utf8(record.body_bytes().expect("a body").to_vec()).expect("text"))
                })),
                Some(Event::Gap(gap)) => return Ok(Read::Gap(gap.from, gap.to)),
                Some(_) => {}
                None => return Ok(Read::End),
            }
        }
    }

    /// The client closes when the server's steps are done, too.
    async fn play(mut self, steps: &[Value], done: watch::Sender<bool>, mut server: watch::Receiver<bool>) -> Played {
        for (at, step) in steps.iter().enumerate() {
            self.step(step).await.map_err(|what| format!("client step {at}: {what}; {step}"))?;
        }
        done.send_replace(true);
        server.wait_for(|done| *done).await.map(drop).map_err(|error| error.to_string())
    }
}

enum Read {
    Record(u64, String),
    Gap(u64, u64),
    End,
}

async fn play(conversation: &Value) -> Played {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("clad.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    let server = Server { listener, stream: None, peeked: None, producer: None, request_id: [0; 4] };
    let steps = |side: &str| conversation[side].as_array().expect("steps").clone();
    let reads = steps("client")[0]["do"] == "read";
    let client = Client::new(Address::unix(path), &conversation["options"], reads);
    let (client_ends, client_done) = watch::channel(false);
    let (server_ends, server_done) = watch::channel(false);
    let (server_steps, client_steps) = (steps("server"), steps("client"));
    tokio::try_join!(
        server.play(&server_steps, server_ends, client_done),
        client.play(&client_steps, client_ends, server_done)
    )
    .map(|_| ())
}

fn conversations() -> Vec<(String, Value)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../vectors/conversations");
    let mut all: Vec<(String, Value)> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            let path = entry.expect("one").path();
            let conversation = serde_json::from_slice(&fs::read(&path).expect("readable")).expect("JSON");
            (path.file_stem().expect("a name").to_string_lossy().into_owned(), conversation)
        })
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

#[tokio::test]
async fn every_conversation_is_played_to_its_end() {
    let all = conversations();
    assert!(all.len() >= 30, "only {}", all.len());
    let played: Vec<_> =
        all.into_iter().map(|(name, it)| (name, tokio::spawn(async move { play(&it).await }))).collect();
    let mut failed = Vec::new();
    for (name, played) in played {
        if let Err(what) = played.await.expect("no panic") {
            failed.push(format!("{name}: {what}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test]
async fn a_conversation_that_expects_something_else_fails() {
    let all: HashMap<String, Value> = conversations().into_iter().collect();
    for (name, side, at, key, wrong) in [
        ("refused_for_good", "server", 7, "body", ".*ff"),
        ("next_epoch_on_the_connection", "client", 3, "offset", "8"),
        ("fenced_on_an_append", "client", 1, "maybe_written", "true"),
        ("resumed_producer", "server", 3, "frame", "\"FLUSH\""),
    ] {
        let mut conversation = all[name].clone();
        let step = &mut conversation[side][at];
        assert!(!step[key].is_null(), "{name} has no {key} in step {at}: {step}");
        step[key] = serde_json::from_str(wrong).unwrap_or_else(|_| wrong.into());
        let Err(what) = play(&conversation).await else { panic!("{name} passes with {key} {wrong}") };
        assert!(what.starts_with(&format!("{side} step {at}: ")), "{name}: {what}");
    }
}
