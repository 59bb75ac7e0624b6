//! The token by which a daemon on the network knows this program.

use std::io;
use std::sync::Arc;

use clad_proto::frame::Hello;
use clad_proto::limits::MAX_SECRET_BYTES;

use crate::{Address, ConnectError};

/// Variable that names the file.
const FILE: &str = "CLAD_TOKEN_FILE";

/// The token for an address: what is in the file that `CLAD_TOKEN_FILE` names, without white space around it. It is read at
/// each connection. `None` without the variable, and on sockets of this host, where the kernel names the user.
///
/// # Errors
/// The file cannot be read, is empty, or has more than 32 bytes.
pub(super) fn token(address: &Address) -> Result<Option<Vec<u8>>, ConnectError> {
    let file = std::env::var_os(FILE).filter(|file| !file.is_empty() && !address.knows_its_peer());
    let Some(file) = file else { return Ok(None) };
    let wrong = |what: String| {
        let error = io::Error::new(io::ErrorKind::InvalidInput, format!("{FILE}={}: {what}", file.display()));
        ConnectError::Io { address: address.clone(), error: Arc::new(error) }
    };
    let read = std::fs::read(&file).map_err(|error| wrong(error.to_string()))?;
    let token = read.trim_ascii();
    match token.len() {
        1..=MAX_SECRET_BYTES => Ok(Some(token.to_owned())),
        0 => Err(wrong("it is empty".to_owned())),
        long => Err(wrong(format!("a token of {long} bytes; {MAX_SECRET_BYTES} is the limit"))),
    }
}

/// The greeting with the token in place of its secret, where there is one.
pub(super) fn with_token(address: &Address, hello: &Hello) -> Result<Hello, ConnectError> {
    let hello = hello.clone();
    Ok(match token(address)? {
        Some(secret) => Hello { secret, ..hello },
        None => hello,
    })
}
