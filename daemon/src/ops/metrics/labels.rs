//! The values that labels may take: closed sets, so that no client can make a series.

/// A label: its name, and everything it may say.
pub(crate) trait Label: Copy + 'static {
    /// Name of the label.
    const NAME: &'static str;
    /// Every value, in the order of [`Label::index`].
    const ALL: &'static [Self];
    /// The value as it is shown.
    fn as_str(self) -> &'static str;
    /// Place in [`Label::ALL`].
    fn index(self) -> usize;
}

/// Defines a label and its values.
macro_rules! label {
    ($(#[$about:meta])* $name:ident, $label:literal { $($(#[$what:meta])* $variant:ident = $value:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$what])* $variant,)+ }

        impl Label for $name {
            const NAME: &'static str = $label;
            const ALL: &'static [Self] = &[$(Self::$variant),+];
            fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $value,)+ }
            }
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

label! {
    /// Transport of an append.
    Transport, "transport" {
        /// The framed Unix socket.
        Unix = "unix",
        /// Framed TCP.
        Tcp = "tcp",
        /// gRPC.
        Grpc = "grpc",
        /// A ring of shared memory.
        Shm = "shm",
        /// OTLP over gRPC. Its connections are among those of gRPC.
        OtlpGrpc = "otlp_grpc",
        /// OTLP over HTTP. Its connections are among those of gRPC.
        OtlpHttp = "otlp_http",
        /// Syslog over UDP. It has no connections.
        SyslogUdp = "syslog_udp",
        /// Syslog over TCP.
        SyslogTcp = "syslog_tcp",
        /// Syslog over a Unix socket, of datagrams (which has no connections) or of streams.
        SyslogUnix = "syslog_unix",
        /// RELP.
        Relp = "relp",
        /// systemd-journal-upload. Its connections are among those of gRPC.
        Journal = "journal",
        /// Appends of other logs. Its connections are among those of the framed sockets.
        Relay = "relay",
    }
}

label! {
    /// Level of an ack, or of the wish for one.
    Level, "level" {
        /// No answer.
        None = "none",
        /// The daemon holds it.
        Received = "received",
        /// The kernel has completed the write.
        Written = "written",
        /// It is on stable storage.
        Durable = "durable",
    }
}

label! {
    /// Ends of the log.
    Watermark, "watermark" {
        /// Has an offset.
        Received = "received",
        /// Is with the kernel.
        Written = "written",
        /// Is on stable storage.
        Durable = "durable",
    }
}

label! {
    /// Reason of a refusal.
    Rejected, "reason" {
        /// Not readable: wrong checksum, wrong length, not a record.
        Malformed = "malformed",
        /// A record, append or frame over its limit.
        TooLarge = "too_large",
        /// An ack level that this log cannot reach.
        Level = "level",
        /// A sequence that neither follows nor repeats.
        Sequence = "sequence",
        /// A producer of a lower epoch.
        Fenced = "fenced",
        /// A producer id that belongs to somebody else, or something the peer may not do.
        Denied = "denied",
        /// A limit on connections, producers or memory.
        Busy = "busy",
        /// A peer that said nothing, ended in the middle, or took nothing, for too long.
        Timeout = "timeout",
        /// No space on the disk.
        NoSpace = "no_space",
        /// The owner's share of the kept log is used up.
        Quota = "quota",
        /// The journal has failed and recovers.
        JournalFailed = "journal_failed",
        /// The daemon is stopping.
        Stopping = "stopping",
    }
}

label! {
    /// Refusal by a rule of access.
    Refused, "what" {
        /// The peer may not append.
        Append = "append",
        /// The peer may not read.
        Read = "read",
        /// The peer may not hold.
        Hold = "hold",
        /// The peer may not administer.
        Admin = "admin",
        /// The peer may not forward that log's appends.
        Forward = "forward",
        /// Records of a component that the peer may not append.
        Component = "component",
        /// A token that is none, or that came in the clear.
        Token = "token",
    }
}

label! {
    /// Shared resource that was refused because the owner's share was used up, or none was left.
    Share, "what" {
        /// Connections.
        Connections = "connections",
        /// Bytes of appends in memory.
        InflightBytes = "inflight_bytes",
        /// Producers that the journal remembers.
        Producers = "producers",
        /// Open READs.
        Reads = "reads",
        /// Rings of shared memory.
        Rings = "rings",
        /// Bytes of the kept log, where `[retention] per_owner_bytes` bounds them.
        LogBytes = "log_bytes",
    }
}

label! {
    /// Reason of a drop without an answer: the sender wanted none, or is gone.
    Dropped, "reason" {
        /// Not readable, over a limit, or out of sequence.
        Invalid = "invalid",
        /// A limit on memory.
        Busy = "busy",
        /// No space on the disk.
        NoSpace = "no_space",
        /// The owner's share of the kept log is used up.
        Quota = "quota",
        /// The journal has failed.
        JournalFailed = "journal_failed",
        /// A rule of access does not let the peer append it.
        Denied = "denied",
        /// The daemon is stopping.
        Stopping = "stopping",
        /// The kernel's queue of a UDP socket was full.
        KernelQueue = "kernel_queue",
    }
}

label! {
    /// Format that a message of syslog was read by.
    SyslogFormat, "format" {
        /// RFC 5424.
        Rfc5424 = "5424",
        /// RFC 3164, as vendors send it.
        Rfc3164 = "3164",
        /// None: the whole is the body.
        Raw = "raw",
    }
}

label! {
    /// Answer to a request of OTLP.
    OtlpCode, "code" {
        /// Everything has its level.
        Ok = "ok",
        /// Some records are refused for ever, the others have their level.
        Partial = "partial",
        /// Not readable, or no record of it is good.
        Invalid = "invalid",
        /// Longer than its limit.
        TooLarge = "too_large",
        /// An encoding or content type that is not taken.
        Unsupported = "unsupported",
        /// An ack level that this log cannot reach, or the peer may not ask for.
        Level = "level",
        /// The peer may not append, or its token is none.
        Denied = "denied",
        /// A limit on memory, requests or producers: to be sent again.
        Busy = "busy",
        /// A full disk, a failed journal, the end of the daemon: to be sent again.
        Unavailable = "unavailable",
    }
}

label! {
    /// End of a handshake of TLS.
    Handshake, "result" {
        /// A new session.
        Full = "full",
        /// A session that goes on.
        Resumed = "resumed",
        /// The peer speaks no TLS.
        Plaintext = "plaintext",
        /// The bytes behind the first one are no TLS.
        NotTls = "not_tls",
        /// The peer has shown no certificate, and one is required.
        NoCertificate = "no_certificate",
        /// The peer's certificate is refused.
        BadCertificate = "bad_certificate",
        /// No version or cipher that both speak.
        Incompatible = "incompatible",
        /// The peer refuses the daemon's certificate, or what it offers.
        Refused = "refused",
        /// It took longer than `[limits] handshake_timeout`.
        Timeout = "timeout",
        /// Too many were under way: the oldest ended.
        Crowded = "crowded",
        /// The peer has gone.
        Closed = "closed",
        /// Anything else.
        Failed = "failed",
    }
}

label! {
    /// Why a segment was sealed.
    Trigger, "trigger" {
        /// It was full.
        Size = "size",
        /// It was old.
        Age = "age",
        /// Somebody asked.
        Command = "command",
        /// The journal recovered from a failure.
        Recovery = "recovery",
    }
}

label! {
    /// End of a recovery in the running process.
    Recovery, "outcome" {
        /// The journal takes appends again.
        Done = "done",
        /// It is tried again.
        Failed = "failed",
    }
}

label! {
    /// State of a segment that is not there as it was.
    Broken, "damage" {
        /// It is not there, and was not removed by retention.
        Missing = "missing",
        /// Its header was lost.
        Unreadable = "unreadable",
        /// It had a footer, and has lost it: records may be gone at its end.
        MissingFooter = "missing_footer",
    }
}

label! {
    /// Which rule removed a segment.
    Rule, "rule" {
        /// `retention.max_bytes`
        MaxBytes = "max_bytes",
        /// `retention.max_age`
        MaxAge = "max_age",
        /// `retention.min_free`
        MinFree = "min_free",
    }
}

label! {
    /// Feature that the kernel or file system did not offer, so that a slower way was used.
    Fallback, "reason" {
        /// Direct writes.
        Direct = "direct",
        /// A sync as part of a write.
        WriteSync = "write_sync",
        /// io_uring, because it is not permitted.
        UringDenied = "uring_denied",
        /// io_uring, because this kernel has none, or not all that is needed.
        UringUnsupported = "uring_unsupported",
        /// Memory that stays locked, for io_uring or its buffers.
        Memlock = "memlock",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reasons that the manual's section of an alert explains, a line for one or some.
    fn explained(alert: &str) -> Vec<String> {
        let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/OPERATIONS.md");
        let manual = std::fs::read_to_string(manual).expect("the manual");
        let section = manual.split_once(&format!("\n### {alert}\n")).expect("a section").1;
        let section = section.split("\n### ").next().unwrap_or_default();
        let heads = section.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("`:"));
        let mut all: Vec<String> =
            heads.flat_map(|(reasons, _)| reasons.split("`, `").map(str::to_owned).collect::<Vec<_>>()).collect();
        all.sort_unstable();
        all
    }

    fn values<L: Label>() -> Vec<String> {
        let mut all: Vec<String> = L::ALL.iter().map(|label| label.as_str().to_owned()).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn the_runbook_explains_each_reason_and_no_other() {
        assert_eq!(explained("CladIoFallback"), values::<Fallback>());
        assert_eq!(explained("CladRecordsDropped"), values::<Dropped>());
        assert_eq!(explained("CladRecordsLost"), values::<Broken>());
    }
}
