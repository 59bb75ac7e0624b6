//! Authorities and certificates of every kind, made by the tests themselves.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
    date_time_ymd,
};

/// Who issues certificates.
pub(super) struct Authority {
    certificate: Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate that is asked for.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) dns_names: &'a [&'a str],
    pub(super) uris: &'a [&'a str],
    /// Years of its beginning and its end.
    pub(super) valid: (i32, i32),
}

impl Default for Wanted<'_> {
    fn default() -> Self {
        Self { dns_names: &[], uris: &[], valid: (2020, 2120) }
    }
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) cert: String,
    pub(super) key: String,
}

/// Files in a folder.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

fn params(wanted: Wanted<'_>) -> CertificateParams {
    let names: Vec<String> = wanted.dns_names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    for uri in wanted.uris {
        params.subject_alt_names.push(SanType::URI((*uri).try_into().expect("a URI")));
    }
    params.distinguished_name.push(DnType::CommonName, "not a name that counts");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    (params.not_before, params.not_after) = (date_time_ymd(wanted.valid.0, 1, 1), date_time_ymd(wanted.valid.1, 1, 1));
    params
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2120, 1, 1));
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self { certificate, issuer: Issuer::new(params, key) }
    }

    pub(super) fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// For a daemon on this host, for so many days from now on.
    pub(super) fn server_for(&self, days: u64) -> Issued {
        let mut params = params(Wanted { dns_names: &["localhost", "127.0.0.1"], ..Wanted::default() });
        params.not_after = (SystemTime::now() + Duration::from_secs(days * 24 * 3600)).into();
        self.sign(&params)
    }

    pub(super) fn issue(&self, wanted: Wanted<'_>) -> Issued {
        self.sign(&params(wanted))
    }

    fn sign(&self, params: &CertificateParams) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Issued { cert: certificate.pem(), key: key.serialize_pem() }
    }
    /// For a daemon on this host.
    pub(super) fn server(&self) -> Issued {
        self.issue(Wanted { dns_names: &["localhost", "127.0.0.1"], ..Wanted::default() })
    }

    /// For a client of this name.
    pub(super) fn client(&self, uri: &str) -> Issued {
        self.issue(Wanted { uris: &[uri], ..Wanted::default() })
    }
}

impl Issued {
    /// Puts both into files, each whole.
    pub(super) fn put(&self, folder: &Path, name: &str) -> Files {
        let files = Files { cert: folder.join(format!("{name}.crt")), key: folder.join(format!("{name}.key")) };
        replace(&files.key, &self.key, 0o600);
        replace(&files.cert, &self.cert, 0o644);
        files
    }
}

/// Replaces a file by one with this content.
pub(super) fn replace(path: &Path, content: &str, mode: u32) {
    let new = path.with_extension("new");
    fs::write(&new, content).expect("written");
    fs::set_permissions(&new, Permissions::from_mode(mode)).expect("its mode");
    fs::rename(&new, path).expect("renamed");
}
