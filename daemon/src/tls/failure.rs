//! Failed handshakes: what was wrong, for count and log.

use std::io;
use std::net::SocketAddr;

use rustls::{AlertDescription, CertificateError, Error};

use crate::ops::limited_line::LimitedLine;
use crate::ops::metrics::{Handshake, Label};

/// Why a handshake came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(super) kind: Handshake,
    pub(super) what: String,
}

impl Failure {
    pub(super) fn new(kind: Handshake, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }

    /// By the error of the handshake.
    pub(super) fn of(error: &io::Error) -> Self {
        let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
            return Self::new(Handshake::Closed, format!("the peer ended it: {error}"));
        };
        match error {
            Error::NoCertificatesPresented => Self::new(
                Handshake::NoCertificate,
                "the peer has shown no certificate, and tls.require_client_cert wants one",
            ),
            Error::InvalidCertificate(reason) => Self::new(Handshake::BadCertificate, certificate(reason)),
            Error::PeerIncompatible(reason) => Self::new(
                Handshake::Incompatible,
                format!("the peer speaks no version or cipher that tls.min_version leaves: {reason:?}"),
            ),
            Error::AlertReceived(alert) => Self::new(Handshake::Refused, refused(*alert)),
            Error::InvalidMessage(reason) => {
                Self::new(Handshake::NotTls, format!("what the peer sends is not TLS: {reason:?}"))
            }
            other => Self::new(Handshake::Failed, other.to_string()),
        }
    }
}

fn certificate(reason: &CertificateError) -> String {
    let what = match reason {
        CertificateError::UnknownIssuer => "no authority of tls.client_ca has issued it".to_owned(),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired, or the clock of this host is ahead".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet, or the clock of this host is behind".to_owned()
        }
        CertificateError::Other(other) => other.to_string(),
        other => format!("{other:?}"),
    };
    format!("the peer's certificate is refused: {what}")
}

fn refused(alert: AlertDescription) -> String {
    let advice = match alert {
        AlertDescription::UnknownCA => ": the authority that issued tls.cert is not among those that the peer trusts",
        AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
            ": the name that the peer asked for may not be in tls.cert"
        }
        AlertDescription::CertificateExpired => ": to the peer tls.cert has expired; is its clock right?",
        _ => "",
    };
    format!("the peer refuses it ({alert:?}){advice}")
}

/// Lines about failures: one for each kind in a while.
pub(super) struct FailureLines([LimitedLine; Handshake::ALL.len()]);

impl Default for FailureLines {
    fn default() -> Self {
        Self([const { LimitedLine::new() }; Handshake::ALL.len()])
    }
}

impl FailureLines {
    pub(super) fn report(&self, listener: &'static str, address: SocketAddr, failure: &Failure) {
        if let Some(line) = self.0.get(failure.kind.index()) {
            line.write(|more| tracing::warn!(%address, key = listener, "TLS: {}{more}", failure.what));
        }
    }
}
