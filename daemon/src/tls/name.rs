//! Name of a peer, out of its certificate.
//!
//! Invariant: a certificate has exactly one name: its one URI, else its one DNS name. With several, the order in a renewed
//! certificate would decide who a peer is. The subject counts for nothing: any authority writes there what it likes.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme};
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Before names of tokens, which are stored in the same place.
pub(crate) const TOKEN_PREFIX: &str = "token:";
/// Longest name; it is stored with each append.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// Why a certificate names nobody.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoName {
    #[error("it cannot be read")]
    Unreadable,
    #[error("it has no name: one URI, or one DNS name, as subjectAltName is wanted")]
    None,
    #[error("it has {0} URIs as subjectAltName: one is wanted, for its order must not decide who a peer is")]
    Uris(usize),
    #[error(
        "it has {0} DNS names as subjectAltName and no URI: one is wanted, for their order must not decide who a peer is"
    )]
    DnsNames(usize),
    #[error("its name begins with {TOKEN_PREFIX}, as those of tokens do")]
    Token,
    #[error("its name has {0} bytes: {NAME_BYTES_MAX} is the limit")]
    Long(usize),
}

/// The name.
pub(super) fn of(certificate: &CertificateDer<'_>) -> Result<Arc<str>, NoName> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| NoName::Unreadable)?;
    let names = parsed.subject_alternative_name().map_err(|_| NoName::Unreadable)?;
    let names = names.as_ref().map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    let (mut uris, mut dns_names) = (Vec::new(), Vec::new());
    for name in names {
        match name {
            GeneralName::URI(uri) => uris.push(*uri),
            GeneralName::DNSName(name) => dns_names.push(*name),
            _ => {}
        }
    }
    let name = match (uris.as_slice(), dns_names.as_slice()) {
        ([uri], _) => (*uri).to_owned(),
        // Names of hosts are the same in either case.
        ([], [name]) => name.to_ascii_lowercase(),
        ([], []) => return Err(NoName::None),
        ([], several) => return Err(NoName::DnsNames(several.len())),
        (several, _) => return Err(NoName::Uris(several.len())),
    };
    match name.len() {
        0 => Err(NoName::None),
        _ if name.starts_with(TOKEN_PREFIX) => Err(NoName::Token),
        1..=NAME_BYTES_MAX => Ok(name.into()),
        long => Err(NoName::Long(long)),
    }
}

/// Owner of the producers of a name: 62 bits of its hash. The highest two bits keep it apart from uids (00) and secrets (1x).
pub(crate) fn owner(name: &str) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&Sha256::digest(format!("tls:{name}"))[..8]);
    u64::from_le_bytes(first) >> 2 | 1 << 62
}

/// A verifier that also wants a name of each certificate ([`of`]).
#[derive(Debug)]
pub(super) struct NamedPeers(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for NamedPeers {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.0.verify_client_cert(certificate, intermediates, now)?;
        match of(certificate) {
            Ok(_) => Ok(verified),
            Err(error) => Err(CertificateError::Other(OtherError(Arc::new(error))).into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
