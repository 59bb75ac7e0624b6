//! The rules, ready to be asked.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use nix::unistd::{Gid, Group, User};

use super::rate::Rate;
use super::rights::{Decided, Rights};
use super::subject::Subject;
use super::tokens::Tokens;
use crate::config::{self, AccessRule, Id, Network, Pattern, Right, Who};

/// Why rules and tokens are not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("access.rule {rule} ({at}): there is no {kind} {name} on this host, or its name service does not answer")]
    NoSuchName { rule: usize, at: String, kind: &'static str, name: String },
    #[error("access.tokens_file = {}: {what}", path.display())]
    Tokens { path: PathBuf, what: String },
}

/// One of those whom a rule is for, in numbers.
#[derive(Debug)]
enum Fits {
    Everybody,
    AnyUser,
    Uid(u32),
    /// The group, and the users that it names as members.
    Gid(u32, Vec<u32>),
    Certificate(Pattern),
    Token(Pattern),
    Address(Network),
}

impl Fits {
    fn fits(&self, subject: &Subject) -> bool {
        match self {
            Self::Everybody => true,
            Self::AnyUser => subject.uid.is_some(),
            Self::Uid(uid) => subject.uid == Some(*uid),
            Self::Gid(gid, members) => {
                subject.gid == Some(*gid) || subject.uid.is_some_and(|uid| members.binary_search(&uid).is_ok())
            }
            Self::Certificate(pattern) => subject.certificate.as_deref().is_some_and(|name| pattern.matches(name)),
            Self::Token(pattern) => subject.token.as_deref().is_some_and(|name| pattern.matches(name)),
            Self::Address(network) => subject.address.is_some_and(|address| network.has(address)),
        }
    }
}

/// A rule.
#[derive(Debug)]
struct Rule {
    who: Vec<Fits>,
    rights: Arc<Rights>,
    /// Bytes for each peer in a second; zero is no limit.
    bytes_per_second: u64,
}

/// Rates of peers, by the number of the rule and the name of the peer. Those that nobody has used for a while go when there
/// are as many as `limit`.
#[derive(Debug, Default)]
struct Rates {
    of: HashMap<(usize, String), Arc<Rate>>,
    limit: usize,
}

/// Rates that are kept in any case.
const RATES_MIN: usize = 1024;

/// Rules and tokens that were read together.
#[derive(Debug, Default)]
pub(crate) struct RuleSet {
    rules: Vec<Rule>,
    tokens: Tokens,
    rates: Mutex<Rates>,
}

impl RuleSet {
    /// Reads the tokens, and makes numbers of names. Blocks, for as long as a name service takes.
    ///
    /// # Errors
    /// A name that the host does not have; the file of the tokens.
    pub(crate) fn read(settings: &config::Access) -> Result<Self, AccessError> {
        let tokens = match &settings.tokens_file {
            None => Tokens::default(),
            Some(path) => {
                Tokens::read(path).map_err(|what| AccessError::Tokens { path: path.clone(), what: what.to_string() })?
            }
        };
        let rules = settings.rule.iter().enumerate().map(|(at, rule)| compile(at + 1, rule));
        Ok(Self { rules: rules.collect::<Result<_, _>>()?, tokens, rates: Mutex::default() })
    }

    /// Returns true if there are no rules.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns true if a rule is for users of this host.
    pub(crate) fn has_users(&self) -> bool {
        let is_user = |who: &Fits| matches!(who, Fits::Everybody | Fits::AnyUser | Fits::Uid(_) | Fits::Gid(..));
        self.rules.iter().any(|rule| rule.who.iter().any(is_user))
    }

    /// Returns true if somebody may read by a rule; without rules nothing.
    pub(crate) fn let_read(&self) -> Option<bool> {
        (!self.is_empty()).then(|| self.rules.iter().any(|rule| rule.rights.may(Right::Read)))
    }

    /// Returns true if there is a file of tokens with any in it.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The name of a token, where it is one.
    pub(crate) fn token(&self, token: &[u8]) -> Option<Arc<str>> {
        self.tokens.name(token)
    }

    /// Returns true if the tokens' file has one of this name.
    pub(super) fn has_token(&self, name: &str) -> bool {
        self.tokens.has(name)
    }

    /// Rights of a peer; without rules it may append, and read where `may_read` says so. Root and the daemon's own user may
    /// forward then.
    pub(crate) fn rights(&self, subject: &Subject, may_read: bool) -> Arc<Rights> {
        if self.is_empty() {
            let own = rustix::process::geteuid().as_raw();
            let may_forward = subject.uid.is_some_and(|uid| uid == 0 || uid == own);
            return Rights::without_rules(may_read, subject.uid.is_some(), may_forward);
        }
        let fitting = self.rules.iter().enumerate().find(|(_, rule)| rule.who.iter().any(|who| who.fits(subject)));
        let Some((at, rule)) = fitting else {
            return Arc::new(Rights { decided: Decided::NoneFits, ..Rights::default() });
        };
        if rule.bytes_per_second == 0 {
            return rule.rights.clone();
        }
        let rights = &rule.rights;
        Arc::new(Rights {
            may: rights.may.clone(),
            component: rights.component.clone(),
            owner: rights.owner.clone(),
            logs: rights.logs.clone(),
            rate: Some(self.rate(at, rule.bytes_per_second, subject)),
            ..**rights
        })
    }

    /// The rate of a peer: one for all its connections, by its name or user, else by its address.
    fn rate(&self, rule: usize, bytes_per_second: u64, subject: &Subject) -> Arc<Rate> {
        let user = || subject.uid.map(|uid| format!("uid:{uid}"));
        let address = || subject.address.map(|address| address.to_canonical().to_string());
        let name = subject.identity().map(|name| name.to_string()).or_else(user).or_else(address).unwrap_or_default();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let Rates { of, limit } = &mut *rates;
        if of.len() >= *limit {
            of.retain(|_, rate| Arc::strong_count(rate) > 1 || !rate.is_full());
            *limit = RATES_MIN.max(2 * of.len());
        }
        of.entry((rule, name)).or_insert_with(|| Arc::new(Rate::new(bytes_per_second))).clone()
    }
}

fn compile(number: usize, rule: &AccessRule) -> Result<Rule, AccessError> {
    let missing =
        |kind, name: &str| AccessError::NoSuchName { rule: number, at: rule.at.clone(), kind, name: name.to_owned() };
    let fits = |who: &Who| {
        Ok(match who {
            Who::Everybody => Fits::Everybody,
            Who::Uid(Id::Any) | Who::Gid(Id::Any) => Fits::AnyUser,
            Who::Uid(Id::Number(uid)) => Fits::Uid(*uid),
            Who::Uid(Id::Name(name)) => {
                let user = User::from_name(name).ok().flatten().ok_or_else(|| missing("user", name))?;
                Fits::Uid(user.uid.as_raw())
            }
            Who::Gid(Id::Number(gid)) => {
                let group = Group::from_gid(Gid::from_raw(*gid)).ok().flatten();
                Fits::Gid(*gid, group.map_or_else(Vec::new, |group| members(&group)))
            }
            Who::Gid(Id::Name(name)) => {
                let group = Group::from_name(name).ok().flatten().ok_or_else(|| missing("group", name))?;
                Fits::Gid(group.gid.as_raw(), members(&group))
            }
            Who::Certificate(pattern) => Fits::Certificate(pattern.clone()),
            Who::Token(pattern) => Fits::Token(pattern.clone()),
            Who::Address(network) => Fits::Address(*network),
        })
    };
    let rights = Rights {
        may: rule.may.clone(),
        component: rule.component.clone(),
        max_level: rule.max_level.level(),
        rate: None,
        owner: rule.owner.as_deref().map(Into::into),
        logs: rule.logs.as_deref().map(Into::into),
        decided: Decided::Rule(number),
    };
    let who = rule.who.iter().map(fits).collect::<Result<_, _>>()?;
    Ok(Rule { who, rights: Arc::new(rights), bytes_per_second: rule.max_bytes_per_second })
}

/// Users that a group names, sorted. Those whose primary group it is are known by that.
fn members(group: &Group) -> Vec<u32> {
    let uid = |name: &String| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw());
    let mut members: Vec<u32> = group.mem.iter().filter_map(uid).collect();
    members.sort_unstable();
    members
}

#[cfg(test)]
mod tests {
    use clad_proto::{AckLevel, LogId};

    use super::*;
    use crate::config::{DefaultAck, Id};

    fn rule(who: Vec<Who>, may: &[Right]) -> AccessRule {
        AccessRule {
            who,
            may: may.to_vec(),
            component: None,
            max_level: DefaultAck::Highest,
            max_bytes_per_second: 0,
            owner: None,
            logs: None,
            at: "clad.toml:1".to_owned(),
        }
    }

    fn set(rules: Vec<AccessRule>) -> RuleSet {
        let settings = config::Access { rule: rules, ..config::Config::default().access };
        RuleSet::read(&settings).expect("rules")
    }

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).expect("a pattern")
    }

    /// Everybody whom a rule can be for, with who he is.
    fn subjects() -> Vec<(&'static str, Subject)> {
        let of = |parts: &[&str]| {
            let mut subject = Subject::default();
            parts.iter().for_each(|part| subject.add(part).expect("a part"));
            subject
        };
        vec![
            ("nobody", Subject::default()),
            ("root", of(&["uid:0", "gid:0"])),
            ("a user", of(&["gid:70001", "uid:70000"])),
            ("a certificate", of(&["cert:spiffe://prod/billing", "address:10.0.0.1"])),
            ("another certificate", of(&["cert:spiffe://test/billing", "address:10.0.0.1"])),
            ("a token", of(&["token:ci", "address:192.0.2.1"])),
            ("an address", of(&["address:192.0.2.1"])),
        ]
    }

    /// Each way to name somebody, and whom it names.
    fn whos() -> Vec<(Who, &'static [&'static str])> {
        let network = |text: &str| match Who::parse(text) {
            Some(who) => who,
            None => panic!("{text}"),
        };
        let all = &["nobody", "root", "a user", "a certificate", "another certificate", "a token", "an address"];
        vec![
            (Who::Everybody, all),
            (Who::Uid(Id::Any), &["root", "a user"]),
            (Who::Uid(Id::Number(70_000)), &["a user"]),
            (Who::Uid(Id::Name("root".to_owned())), &["root"]),
            (Who::Gid(Id::Any), &["root", "a user"]),
            (Who::Gid(Id::Number(70_001)), &["a user"]),
            (Who::Gid(Id::Name("root".to_owned())), &["root"]),
            (Who::Certificate(pattern("*")), &["a certificate", "another certificate"]),
            (Who::Certificate(pattern("spiffe://prod/*")), &["a certificate"]),
            (Who::Token(pattern("c*")), &["a token"]),
            (Who::Token(pattern("C*")), &[]),
            (network("address:192.0.2.0/24"), &["a token", "an address"]),
            (network("address:0.0.0.0/0"), &["a certificate", "another certificate", "a token", "an address"]),
        ]
    }

    /// Two rules of every kind, every right in each, for every peer: the first that fits decides, for every right.
    #[test]
    fn the_first_rule_that_fits_decides() {
        let mays: Vec<Vec<Right>> = (0..1 << Right::ALL.len())
            .map(|bits| {
                Right::ALL.into_iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1).map(|(_, r)| r).collect()
            })
            .collect();
        let mut decisions = 0;
        for (first, firsts) in whos() {
            for (second, seconds) in whos() {
                for may in &mays {
                    let rest: Vec<Right> = Right::ALL.into_iter().filter(|right| !may.contains(right)).collect();
                    let rules = set(vec![rule(vec![first.clone()], may), rule(vec![second.clone()], &rest)]);
                    for (name, subject) in subjects() {
                        let rights = rules.rights(&subject, true);
                        let (wanted, decided) = match (firsts.contains(&name), seconds.contains(&name)) {
                            (true, _) => (may.as_slice(), Decided::Rule(1)),
                            (false, true) => (rest.as_slice(), Decided::Rule(2)),
                            (false, false) => (&[][..], Decided::NoneFits),
                        };
                        for right in Right::ALL {
                            assert_eq!(rights.may(right), wanted.contains(&right), "{first} {second} {name} {right:?}");
                            decisions += 1;
                        }
                        assert_eq!(rights.decided, decided, "{first} {second} {name}");
                    }
                }
            }
        }
        assert_eq!(decisions, 13 * 13 * 32 * 7 * 5);
    }

    #[test]
    fn without_rules_everybody_appends_and_the_listener_says_who_reads() {
        for (_, subject) in subjects() {
            for may_read in [false, true] {
                let rights = RuleSet::default().rights(&subject, may_read);
                let all = (rights.may(Right::Append), rights.may(Right::Read), rights.may(Right::Admin));
                assert_eq!((all, rights.is_unlimited()), ((true, may_read, false), true));
                assert_eq!(rights.may_forward(LogId::ZERO), subject.uid == Some(0), "{subject}");
            }
        }
        let none = Rights::none();
        assert!(Right::ALL.into_iter().all(|right| !none.may(right)), "who was not judged may nothing");
    }

    #[test]
    fn a_rule_is_for_any_of_those_that_it_names() {
        let rules = set(vec![rule(vec![Who::Uid(Id::Number(1)), Who::Token(pattern("ci"))], &[Right::Append])]);
        let may: Vec<&str> = subjects()
            .into_iter()
            .filter(|(_, subject)| rules.rights(subject, true).may(Right::Append))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(may, ["a token"]);
    }

    #[test]
    fn limits_come_with_the_rule_and_a_rate_is_each_peers_own() {
        let limited = AccessRule {
            component: Some(pattern("billing*")),
            max_level: DefaultAck::Written,
            max_bytes_per_second: 1000,
            owner: Some("billing".to_owned()),
            ..rule(vec![Who::Everybody], &[Right::Append])
        };
        let rules = set(vec![limited]);
        let of = |part: &str| {
            let mut subject = Subject::default();
            subject.add(part).expect("a part");
            rules.rights(&subject, true)
        };
        let (one, again, other) = (of("cert:a"), of("cert:a"), of("cert:b"));
        assert_eq!((one.cap(AckLevel::Durable), one.cap(AckLevel::Received)), (AckLevel::Written, AckLevel::Received));
        assert_eq!((one.owner.as_deref(), one.is_unlimited()), (Some("billing"), false));
        assert!(one.component.as_ref().is_some_and(|component| component.matches("billing-2")));
        let rate = |rights: &Arc<Rights>| rights.rate.clone().expect("a rate");
        assert!(Arc::ptr_eq(&rate(&one), &rate(&again)) && !Arc::ptr_eq(&rate(&one), &rate(&other)));
        // A peer that comes again has what it left, and those that have all of it are forgotten.
        rate(&one).try_take(5000).expect("a long append is made at once");
        drop((one, again, other));
        assert!(rate(&of("cert:a")).try_take(1).is_err(), "it is the same peer");
        (0..3000).for_each(|n| drop(of(&format!("cert:{n}"))));
        let kept = rules.rates.lock().expect("no panic").of.len();
        assert!(kept <= 1024, "{kept} are kept");
        assert!(rate(&of("cert:a")).try_take(1).is_err(), "who has less than all is not forgotten");
    }

    #[test]
    fn a_rule_names_the_logs_that_are_forwarded() {
        let logs = |logs| AccessRule { logs, ..rule(vec![Who::Everybody], &[Right::Forward]) };
        let of = |named| set(vec![logs(named)]).rights(&Subject::default(), false);
        let (one, other) = (LogId::from_bytes([1; 16]), LogId::from_bytes([2; 16]));
        assert!(of(None).may_forward(one) && !of(None).may(Right::Append));
        let named = of(Some(vec![other]));
        assert!(named.may_forward(other) && !named.may_forward(one));
        assert!(!of(Some(Vec::new())).may_forward(one), "an empty list names none");
        let appends = set(vec![rule(vec![Who::Everybody], &[Right::Append])]).rights(&Subject::default(), false);
        assert!(!appends.may_forward(one));
    }

    #[test]
    fn a_name_that_the_host_does_not_have_is_an_error() {
        for who in [Who::Uid(Id::Name("no-such-user".to_owned())), Who::Gid(Id::Name("no-such-group".to_owned()))] {
            let settings = config::Access {
                rule: vec![rule(vec![Who::Everybody], &[]), rule(vec![who], &[])],
                ..config::Config::default().access
            };
            let error = RuleSet::read(&settings).expect_err("there is none").to_string();
            assert!(error.starts_with("access.rule 2 (clad.toml:1): there is no "), "{error}");
        }
    }

    #[test]
    fn other_rights_are_not_the_same() {
        let subject = Subject { uid: Some(70_000), ..Subject::default() };
        let user = Who::Uid(Id::Any);
        let base = rule(vec![user.clone()], &[Right::Append]);
        let rights = |rules: Vec<AccessRule>| set(rules).rights(&subject, false);
        let was = rights(vec![base.clone()]);
        assert!(
            was.is_same(&rights(vec![rule(vec![Who::Token(pattern("x"))], &[]), base.clone()])),
            "another number alone"
        );
        for other in [
            rule(vec![user.clone()], &[Right::Append, Right::Read]),
            rule(vec![user.clone()], &[]),
            AccessRule { component: Some(pattern("a")), ..base.clone() },
            AccessRule { max_level: DefaultAck::Written, ..base.clone() },
            AccessRule { max_bytes_per_second: 5, ..base.clone() },
            AccessRule { owner: Some("a".to_owned()), ..base.clone() },
            AccessRule { logs: Some(vec![LogId::ZERO]), ..base.clone() },
        ] {
            assert!(!was.is_same(&rights(vec![other.clone()])), "{}", other.in_words());
        }
    }
}
