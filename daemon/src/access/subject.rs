//! A peer, as rules see it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use nix::unistd::{Uid, User};

use crate::tls::TOKEN_PREFIX;

/// All that is known of a peer. Each part is from the kernel, but the certificate and the token, which were verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    /// Name in its certificate.
    pub(crate) certificate: Option<Arc<str>>,
    /// Name of its token.
    pub(crate) token: Option<Arc<str>>,
    pub(crate) address: Option<IpAddr>,
}

/// A text that names no peer.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    #[error("{0:?} names nobody: uid:NUMBER-OR-NAME, gid:NUMBER, cert:NAME, token:NAME or address:ADDRESS is wanted")]
    Form(String),
    #[error("there is no user {0} on this host")]
    NoUser(String),
}

impl Subject {
    /// The name that is stored with its appends: of its certificate, else of its token.
    pub(crate) fn identity(&self) -> Option<Arc<str>> {
        let token = || self.token.as_ref().map(|name| format!("{TOKEN_PREFIX}{name}").into());
        self.certificate.clone().or_else(token)
    }

    /// Adds one part, such as `uid:1000`. A user's name becomes its number and its primary group.
    pub(crate) fn add(&mut self, text: &str) -> Result<(), Unread> {
        let wrong = || Unread::Form(text.to_owned());
        let (kind, name) = text.split_once(':').filter(|(_, name)| !name.is_empty()).ok_or_else(wrong)?;
        match kind {
            "uid" => {
                let by_number = name.parse().ok();
                let user = match by_number {
                    Some(uid) => User::from_uid(Uid::from_raw(uid)).ok().flatten(),
                    None => Some(User::from_name(name).ok().flatten().ok_or_else(|| Unread::NoUser(name.to_owned()))?),
                };
                self.uid = by_number.or(user.as_ref().map(|user| user.uid.as_raw()));
                self.gid = self.gid.or(user.map(|user| user.gid.as_raw()));
            }
            "gid" => self.gid = Some(name.parse().map_err(|_| wrong())?),
            "cert" => self.certificate = Some(name.into()),
            "token" => self.token = Some(name.into()),
            "address" => self.address = Some(name.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

/// As `clad check --as` takes it.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.uid.map(|uid| format!("uid:{uid}")),
            self.gid.map(|gid| format!("gid:{gid}")),
            self.certificate.as_ref().map(|name| format!("cert:{name}")),
            self.token.as_ref().map(|name| format!("token:{name}")),
            self.address.map(|address| format!("address:{}", address.to_canonical())),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { f.write_str("nobody that is known") } else { f.write_str(&parts.join(" ")) }
    }
}
