//! `clactl import`: a log in a folder goes to a daemon, each append once, with its first client's checksum.
//!
//! Invariants:
//! - The daemon's log is the checkpoint: it stores an append only where what it has of the stream ends. So an import that was
//!   stopped is called again and goes on, and one that was done does nothing.
//! - It ends well only when all has the level, what an earlier call has sent too.
//! - Before it goes on, the append that the daemon has last is compared with the folder's.
//! - What the folder does not have is stated in the daemon's log, and ends in 1 where it is damage.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use bytes::BytesMut;
use clad_client::{
    AckLevel, Address, ForwardAs, ForwardError, Forwarded, Forwarder, ForwarderOptions, GapReason, OriginState,
    RawRecords, SkipReason, Start, StreamName,
};
use clad_proto::frame::encode_records;
use clad_proto::limits::FRAME_HEADER_BYTES;
use clap::Args;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::admin::Form;
use crate::context::Context;
use crate::exit::{Exit, Outcome, Stop, error_text};
use crate::format::human::{count, counted};
use crate::interrupt::Interrupt;
use crate::output::Progress;
use crate::reach::unreachable;
use crate::read::piece::Whole;
use crate::read::stored::Files;

/// The longest wait for the level of what an earlier call has sent, and the pause between two questions.
const LEVEL_TIMEOUT: Duration = Duration::from_secs(60);
const LEVEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `import`.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// A data folder of a daemon, or a folder `log=LOG-ID/raw=N` of a raw archive
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Level that each append must reach before it counts: received, written or durable
    /// [default: the highest that the log offers]
    #[arg(long, value_name = "LEVEL")]
    ack: Option<AckLevel>,
    /// Name of the stream that the daemon keeps of it: the same name goes on, another one begins again
    #[arg(long, value_name = "NAME", default_value = "import")]
    stream: String,
    /// Form of the result
    #[arg(short, long, value_enum, default_value_t = Form::Text, value_name = "FORM")]
    output: Form,
}

/// The outcome.
#[derive(Debug, Default)]
struct Done {
    records: u64,
    appends: u64,
    /// Below this offset of the folder all is in the daemon's log, but for what was stated as left out.
    end: u64,
    /// Offsets that the daemon had before.
    before: u64,
    damaged: u64,
    too_large: u64,
    trouble: Option<String>,
}

/// `clactl import`.
pub(crate) fn run(context: &mut Context, args: &ImportArgs) -> Outcome {
    let stream = StreamName::new(&args.stream).ok_or_else(|| {
        Stop::usage("--stream: a name of 1 to 24 letters, digits, '-', '_' and '.', and no dot in front")
    })?;
    let address = context.which.server(&context.around)?;
    let files = Files::open(&args.dir)?;
    let mut is_damaged = false;
    for (note, damage) in files.notes() {
        is_damaged |= damage;
        context.output.note(&format!("clactl: {note}"))?;
    }
    let interrupt = Interrupt::listen().map_err(anyhow::Error::new)?;
    let (done, log_id) = context.block_on(import(args, &files, address, stream, &interrupt))?;
    let is_whole = done.trouble.is_none() && done.damaged == 0 && done.too_large == 0 && !is_damaged;
    let exit = context.output.ends(if is_whole { Exit::Done } else { Exit::Failed });
    match args.output {
        Form::Json => context.output.line(&done.json(&log_id))?,
        Form::Text => context.output.line(&done.text(&log_id))?,
    }
    if let Some(trouble) = &done.trouble {
        context.output.note(&format!("clactl: {trouble}; call it again: it goes on there"))?;
    }
    Ok(exit)
}

async fn import(
    args: &ImportArgs,
    files: &Files,
    address: Address,
    stream: StreamName,
    interrupt: &Interrupt,
) -> Result<(Done, String), Stop> {
    let standing = files.standing();
    let options = ForwarderOptions { name: "clactl import".to_owned(), ..ForwarderOptions::default() };
    let connect = async || Forwarder::connect(&address, standing.log_id, stream.clone(), &options).await;
    let far = connect().await.map_err(|error| match error {
        ForwardError::Connect(error) => unreachable(&error),
        error => Stop::Failed(error.into()),
    })?;
    let level = args.ack.unwrap_or(far.log().highest_ack);
    if matches!(level, AckLevel::None | AckLevel::Posted) || level > far.log().highest_ack {
        let highest = far.log().highest_ack.name();
        return Err(Stop::usage(format!("--ack: received or higher, and this log offers no more than {highest}")));
    }
    // What it had before may only be received so far: what is sent now and has the level lies above it.
    let mut reached = far.state_level().is_none_or(|there| there >= level);
    let from = match far.state() {
        Some(state) => compared(files, state)?,
        None => files.first_offset(),
    };
    let mut import = Import {
        level,
        begins: far.state().is_none(),
        far,
        expected: from,
        skip: None,
        done: Done { end: from, before: from.saturating_sub(files.first_offset()), ..Done::default() },
        progress: Progress::records("importing", standing.end.offset),
    };
    let copy = async {
        import.copy(files, from).await?;
        let until = Instant::now() + LEVEL_TIMEOUT;
        while import.done.appends == 0 && !reached {
            ensure!(Instant::now() < until, "what the daemon had before is not {} yet", level.name());
            sleep(LEVEL_POLL_INTERVAL).await;
            reached = connect().await?.state_level().is_none_or(|there| there >= level);
        }
        Ok(())
    };
    let copied = match interrupt.or(copy).await {
        Some(copied) => copied,
        None => Err(anyhow!("interrupted")),
    };
    // What was sent may be answered yet: it is asked for at the next call.
    import.done.trouble = copied.err().map(|error| error_text(&error));
    Ok((import.done, standing.log_id.to_string()))
}

/// The offset to go on at, where the daemon's last append is the folder's too.
fn compared(files: &Files, state: &OriginState) -> Result<u64, Stop> {
    let end = files.standing().end.offset;
    if state.count == 0 || state.first < files.first_offset() || state.first >= end {
        return Ok(state.end.min(end)); // its content is not known there any more, or is not here
    }
    let mut stream = files.read(Start::Offset(state.first))?;
    let said = format!("{} records from offset {} on with CRC {:08x}", state.count, state.first, state.payload_crc);
    match stream.next_whole()? {
        Some(Whole::Append { head, .. })
            if (head.first_offset, head.count, head.payload_crc) == (state.first, state.count, state.payload_crc) =>
        {
            Ok(state.end)
        }
        Some(Whole::Append { head, .. }) => Err(Stop::Failed(anyhow!(
            "the folder and the daemon's log have parted: the daemon has {said}, the folder {} from offset {} on with CRC {:08x}. \
             Nothing was sent: `--stream` begins another stream",
            head.count,
            head.first_offset,
            head.payload_crc
        ))),
        _ => Err(Stop::Failed(anyhow!(
            "the daemon's last append of this stream cannot be read in the folder: {said}. Nothing was sent"
        ))),
    }
}

struct Import {
    far: Forwarder,
    level: AckLevel,
    begins: bool,
    expected: u64,
    skip: Option<SkipReason>,
    done: Done,
    progress: Progress,
}

impl Import {
    async fn copy(&mut self, files: &Files, from: u64) -> anyhow::Result<()> {
        let total = files.standing().end.offset;
        let mut stream = files.read(Start::Offset(from.min(total)))?;
        while let Some(whole) = stream.next_whole()? {
            match whole {
                Whole::Append { head, peer_meta, payload } => {
                    let mut frame = BytesMut::new();
                    encode_records(&mut frame, 0, &head, &peer_meta, &payload);
                    let raw = RawRecords::parse(frame.freeze().split_off(FRAME_HEADER_BYTES))?;
                    self.send(&raw).await?;
                }
                Whole::Gap(gap) => {
                    self.skip = Some(match gap.reason {
                        GapReason::Retention => SkipReason::Retention,
                        GapReason::Damage => SkipReason::Damage,
                    });
                    if gap.reason == GapReason::Damage {
                        self.done.damaged += gap.to - gap.from;
                    }
                }
            }
            self.progress.at(self.done.end, total);
        }
        while self.far.pending() > 0 {
            let receipt = self.far.next().await?;
            self.count(&receipt);
        }
        Ok(())
    }

    async fn send(&mut self, raw: &RawRecords) -> anyhow::Result<()> {
        while !self.far.has_room() {
            let receipt = self.far.next().await?;
            self.count(&receipt);
        }
        let first = raw.head().first_offset;
        let previous = if self.begins { first } else { self.expected };
        let skip = (first > previous).then(|| self.skip.unwrap_or(SkipReason::Damage));
        let how = ForwardAs { previous, skip, begins: self.begins, level: self.level };
        match self.far.forward(how, raw).await {
            Ok(()) => (self.begins, self.skip, self.expected) = (false, None, raw.end_offset()),
            Err(ForwardError::TooLarge { .. }) => {
                self.skip = Some(SkipReason::TooLarge);
                self.done.too_large += u64::from(raw.head().count);
            }
            Err(error) => return Err(error).context("the daemon takes no more"),
        }
        Ok(())
    }

    fn count(&mut self, receipt: &Forwarded) {
        self.done.appends += 1;
        self.done.records += receipt.end - receipt.first;
        self.done.end = receipt.end;
    }
}

impl Done {
    fn text(&self, log_id: &str) -> String {
        let mut text = format!(
            "log {log_id}: {} in {} imported, to offset {}",
            counted(self.records, "record"),
            counted(self.appends, "append"),
            count(self.end)
        );
        for (number, what) in [
            (self.before, "were there before"),
            (self.damaged, "cannot be read here, which is stated there"),
            (self.too_large, "are in appends that are larger than the daemon takes, and were left out"),
        ] {
            if number > 0 {
                text.push_str(&format!("; {} {what}", counted(number, "offset")));
            }
        }
        text
    }

    fn json(&self, log_id: &str) -> String {
        json!({
            "log_id": log_id,
            "records": self.records,
            "appends": self.appends,
            "end_offset": self.end,
            "offsets_before": self.before,
            "offsets_damaged": self.damaged,
            "records_too_large": self.too_large,
            "error": self.trouble,
        })
        .to_string()
    }
}
