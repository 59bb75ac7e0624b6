//! `status`, `top`, `segments`, `cursors`, `origins`, `rotate`, `sync`: the daemon's handles, over gRPC on its admin socket, or over TLS.

mod connect;
mod cursors;
mod origins;
mod segments;
mod status;
mod top;

use std::collections::HashMap;
use std::time::Duration;

use clad_client::Address;
use clad_proto::LogId;
use clad_proto::grpc::v1;
use clap::{Args, Subcommand};
use serde_json::json;

use self::connect::{Admin, DISK_REPLY_TIMEOUT, MEMORY_REPLY_TIMEOUT, ask, status_of};
pub(crate) use self::top::{TopArgs, run as top};
use crate::clock;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop};
use crate::format::human::count;

/// The form of an answer.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Shown {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    pub(crate) output: Form,
}

/// For a person or for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// For people
    Text,
    /// JSON: one object, or one a line where there are several
    Json,
}

/// Options of `clactl cursors`.
#[derive(Debug, Args)]
pub(crate) struct CursorsArgs {
    #[command(subcommand)]
    order: Option<CursorsOrder>,
    #[command(flatten)]
    shown: Shown,
}

#[derive(Debug, Subcommand)]
enum CursorsOrder {
    /// Remove a cursor: nothing is held for its reader any more, and it has no place to go on from
    Drop {
        /// The cursor's name
        name: String,
    },
}

/// `clactl status`.
pub(crate) fn status(context: &mut Context, shown: Shown) -> Outcome {
    let status = context.block_on(status_of(&context.which.admin(&context.around)?))?;
    let text = match shown.output {
        Form::Text => status::screen::still(&status, clock::unix_nanos(), context.output.columns()),
        Form::Json => format!("{}\n", status::json(&status)),
    };
    context.output.write(text.as_bytes())?;
    Ok(Exit::Done)
}

/// `clactl segments`.
pub(crate) fn segments(context: &mut Context, shown: Shown) -> Outcome {
    let answer = context.ask(MEMORY_REPLY_TIMEOUT, async |admin| admin.segments(v1::SegmentsRequest {}).await)?;
    let text = match shown.output {
        Form::Text => segments::columns(&answer.segments, &context.zone),
        Form::Json => segments::lines(&answer.segments),
    };
    context.output.write(text.as_bytes())?;
    Ok(Exit::Done)
}

/// `clactl cursors`.
pub(crate) fn cursors(context: &mut Context, args: CursorsArgs) -> Outcome {
    if let Some(CursorsOrder::Drop { name }) = args.order {
        let request = v1::DropCursorRequest { name: name.clone() };
        context.ask(DISK_REPLY_TIMEOUT, async |admin| admin.drop_cursor(request).await)?;
        let text = match args.shown.output {
            Form::Json => json!({ "dropped": name }).to_string(),
            Form::Text => format!("cursor {name} is removed"),
        };
        context.output.line(&text)?;
        return Ok(Exit::Done);
    }
    let answer = context.ask(MEMORY_REPLY_TIMEOUT, async |admin| admin.cursors(v1::CursorsRequest {}).await)?;
    let text = match args.shown.output {
        Form::Text => cursors::columns(&answer, &context.zone),
        Form::Json => cursors::lines(&answer.cursors),
    };
    context.output.write(text.as_bytes())?;
    Ok(Exit::Done)
}

/// `clactl origins`.
#[derive(Debug, Clone, Args)]
pub(crate) struct OriginsArgs {
    #[command(subcommand)]
    action: Option<OriginsAction>,
    #[command(flatten)]
    shown: Shown,
}

/// An action on one.
#[derive(Debug, Clone, Subcommand)]
enum OriginsAction {
    /// Forget a stream: it may begin again, from where its forwarder says; its records stay
    Drop {
        /// Id of the log that the stream is of, 32 hex digits
        #[arg(value_name = "LOG-ID")]
        log: LogId,
        /// Name of the stream
        stream: String,
        /// Owner that forwards it, where several do, as `clactl origins` shows it
        #[arg(long, value_name = "OWNER")]
        owner: Option<u64>,
    },
}

/// `clactl origins`.
pub(crate) fn origins(context: &mut Context, args: &OriginsArgs) -> Outcome {
    let text = match &args.action {
        None => {
            let status = context.block_on(status_of(&context.which.admin(&context.around)?))?;
            match args.shown.output {
                Form::Text => origins::columns(&status.origins),
                Form::Json => status.origins.iter().map(|origin| format!("{}\n", origins::object(origin))).collect(),
            }
        }
        Some(OriginsAction::Drop { log, stream, owner }) => {
            let (log_id, stream, owner) = (log.to_bytes().to_vec().into(), stream.clone(), *owner);
            let request = v1::DropOriginRequest { log_id, stream, owner };
            let answer = context.ask(DISK_REPLY_TIMEOUT, async |admin| admin.drop_origin(request).await)?;
            let dropped = answer.origin.unwrap_or_default();
            match args.shown.output {
                Form::Json => format!("{}\n", origins::object(&dropped)),
                Form::Text => format!(
                    "dropped stream {} of log {}, which ended at source offset {}\n",
                    dropped.stream,
                    origins::log_of(&dropped),
                    count(dropped.end)
                ),
            }
        }
    };
    context.output.write(text.as_bytes())?;
    Ok(Exit::Done)
}

/// `clactl rotate`.
pub(crate) fn rotate(context: &mut Context, shown: Shown) -> Outcome {
    let answer = context.ask(DISK_REPLY_TIMEOUT, async |admin| admin.rotate(v1::RotateRequest {}).await)?;
    let text = match (shown.output, answer.sealed_segment) {
        (Form::Json, sealed) => json!({
            "sealed_segment": sealed,
            "first_offset": sealed.map(|_| answer.first_offset),
            "end_offset": sealed.map(|_| answer.end_offset),
            "active_segment": answer.active_segment,
        })
        .to_string(),
        (Form::Text, Some(sealed)) => format!(
            "sealed segment {sealed} (offsets {} to {}); {}",
            count(answer.first_offset),
            count(answer.end_offset.saturating_sub(1)),
            match answer.active_segment {
                Some(active) => format!("appends go to segment {active}"),
                None =>
                    "there is no other one: appends are refused until it can be opened (`clactl status`)".to_owned(),
            }
        ),
        (Form::Text, None) => match answer.active_segment {
            Some(active) => format!("nothing to seal: segment {active} has no records yet"),
            None => "nothing to seal: no segment is open, and appends are refused (`clactl status`)".to_owned(),
        },
    };
    context.output.line(&text)?;
    Ok(Exit::Done)
}

/// `clactl sync`.
pub(crate) fn sync(context: &mut Context, shown: Shown) -> Outcome {
    let answer = context.ask(DISK_REPLY_TIMEOUT, async |admin| admin.sync(v1::SyncRequest {}).await)?;
    let text = match shown.output {
        Form::Json => json!({ "durable": answer.durable }).to_string(),
        Form::Text => format!("all offsets below {} are durable", count(answer.durable)),
    };
    context.output.line(&text)?;
    Ok(Exit::Done)
}

impl Context {
    /// Asks the daemon one thing, and waits so long for its answer.
    fn ask<T>(
        &self,
        timeout: Duration,
        what: impl AsyncFnOnce(&mut Admin) -> Result<tonic::Response<T>, tonic::Status>,
    ) -> Result<T, Stop> {
        self.block_on(ask(&self.which.admin(&self.around)?, timeout, what))
    }
}

/// Addresses that a daemon listens on, by what is served there.
pub(crate) async fn listeners(at: &Address) -> Result<HashMap<String, String>, Stop> {
    Ok(status_of(at).await?.listeners)
}
