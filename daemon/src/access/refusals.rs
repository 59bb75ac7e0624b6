//! Refusals: what a peer, the log and the metrics get.

use clad_proto::{ErrorCode, ErrorInfo};

use super::rights::Rights;
use super::subject::Subject;
use crate::config::Right;
use crate::ops::limited_line::LimitedLine;
use crate::ops::metrics::{self, Label, Refused};

/// A line for each kind of refusal.
static LINES: [LimitedLine; Refused::ALL.len()] = [const { LimitedLine::new() }; Refused::ALL.len()];

/// The error for a peer that may not do something; it is counted, and the log has a line of it.
pub(crate) fn refused(subject: &Subject, rights: &Rights, what: Refused) -> ErrorInfo {
    let action = match what {
        Refused::Append => "append to this log".to_owned(),
        Refused::Read => "read this log".to_owned(),
        Refused::Hold => "hold records by a cursor".to_owned(),
        Refused::Admin => "administer this daemon".to_owned(),
        Refused::Forward => match &rights.logs {
            Some(_) => "forward appends of this log to that one: `logs` of its rule does not name it".to_owned(),
            None => "forward appends of other logs to this one".to_owned(),
        },
        Refused::Component => {
            let pattern = rights.component.as_ref().map_or_else(String::new, ToString::to_string);
            format!("append what is not of component {pattern}")
        }
        Refused::Token => {
            "use this token: access.tokens_file has none with its hash, or it came over the network without TLS"
                .to_owned()
        }
    };
    metrics::access_refused(what);
    let because = rights.because();
    if let Some(line) = LINES.get(what.index()) {
        line.write(|more| tracing::warn!(peer = %subject, "refused: it may not {action}: {because}{more}"));
    }
    let explained = match what {
        Refused::Token => String::new(),
        _ => format!(": {because}"),
    };
    ErrorInfo::new(ErrorCode::PermissionDenied, format!("this peer ({subject}) may not {action}{explained}"))
}

impl From<Right> for Refused {
    fn from(right: Right) -> Self {
        match right {
            Right::Append => Self::Append,
            Right::Read => Self::Read,
            Right::Hold => Self::Hold,
            Right::Admin => Self::Admin,
            Right::Forward => Self::Forward,
        }
    }
}
