//! Words of `[[access.rule]]`: peers, rights, patterns.
//!
//! Invariant: what is shown is read back as the same.

use std::fmt;
use std::net::IpAddr;

/// Longest pattern: that of a name in a certificate, and room for `*`.
const PATTERN_BYTES_MAX: usize = 256;

/// A text in which each `*` stands for any bytes, none included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Reads it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let is_plain = !text.is_empty() && text.len() <= PATTERN_BYTES_MAX && !text.contains(char::is_control);
        is_plain.then(|| Self(text.to_owned()))
    }

    /// Returns true if the whole text is of this pattern. Takes time in proportion to both lengths at most.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut at, mut from) = (0, 0);
        // Behind the last `*`, and how much of the text it stands for: one more where the rest does not fit.
        let mut star = None;
        while from < text.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    at += 1;
                    star = Some((at, from));
                }
                Some(byte) if *byte == text[from] => (at, from) = (at + 1, from + 1),
                _ => match &mut star {
                    Some((behind, taken)) => {
                        *taken += 1;
                        (at, from) = (*behind, *taken);
                    }
                    None => return false,
                },
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Id {
    /// Any of them.
    Any,
    /// By its number.
    Number(u32),
    /// By its name on this host.
    Name(String),
}

impl Id {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "*" => Some(Self::Any),
            _ if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok().map(Self::Number),
            // What useradd takes, by and large.
            _ => {
                let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.@\\$".contains(&byte);
                let begins = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
                (begins && text.bytes().all(is_plain)).then(|| Self::Name(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Addresses with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().ok().filter(|bits| *bits <= all)?
            }
            Some(_) => return None,
            None => all,
        };
        let network = Self { address, bits };
        // A bit behind the first ones would be a slip: 10.1.2.3/8.
        (network.first(address) == Self::number(address)).then_some(network)
    }

    fn number(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
            IpAddr::V6(address) => address.to_bits(),
        }
    }

    fn first(self, address: IpAddr) -> u128 {
        let behind = u128::MAX.checked_shr(self.bits.into()).unwrap_or(0);
        Self::number(address) & !behind
    }

    /// Returns true if the address is one of these.
    #[must_use]
    pub fn has(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && self.first(address) == Self::number(self.address)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// One of those whom a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Everybody.
    Everybody,
    /// A user, on a Unix socket.
    Uid(Id),
    /// A member of a group, on a Unix socket.
    Gid(Id),
    /// The name in a certificate.
    Certificate(Pattern),
    /// The name of a token.
    Token(Pattern),
    /// An address of the network.
    Address(Network),
}

impl Who {
    /// Reads it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::Everybody);
        }
        let (kind, name) = text.split_once(':')?;
        match kind {
            _ if name.is_empty() => None,
            "uid" => Id::parse(name).map(Self::Uid),
            "gid" => Id::parse(name).map(Self::Gid),
            "cert" => Pattern::parse(name).map(Self::Certificate),
            "token" => Pattern::parse(name).map(Self::Token),
            "address" => Network::parse(name).map(Self::Address),
            _ => None,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("*"),
            Self::Uid(id) => write!(f, "uid:{id}"),
            Self::Gid(id) => write!(f, "gid:{id}"),
            Self::Certificate(pattern) => write!(f, "cert:{pattern}"),
            Self::Token(pattern) => write!(f, "token:{pattern}"),
            Self::Address(network) => write!(f, "address:{network}"),
        }
    }
}

/// A right that a rule may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// To append records.
    Append,
    /// To read the log.
    Read,
    /// To keep records in the log by a named cursor that holds.
    Hold,
    /// To administer the daemon over the network.
    Admin,
    /// To hand on appends of other logs.
    Forward,
}

impl Right {
    /// Every member.
    pub const ALL: [Self; 5] = [Self::Append, Self::Read, Self::Hold, Self::Admin, Self::Forward];

    /// The word that the configuration uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Read => "read",
            Self::Hold => "hold",
            Self::Admin => "admin",
            Self::Forward => "forward",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A star stands for anything: the same by a way that is slow and plain.
    fn plain(pattern: &str, text: &str) -> bool {
        match pattern.split_once('*') {
            None => pattern == text,
            Some((before, rest)) => text.strip_prefix(before).is_some_and(|text| {
                text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| plain(rest, &text[at..]))
            }),
        }
    }

    #[test]
    fn a_pattern_matches_what_its_stars_can_stand_for() {
        let all = |letters: &[char], longest: u32| {
            let mut words = vec![String::new()];
            for from in 0..longest {
                let longer = words.iter().filter(|word| word.chars().count() == from as usize);
                let longer: Vec<String> =
                    longer.flat_map(|word| letters.iter().map(move |c| format!("{word}{c}"))).collect();
                words.extend(longer);
            }
            words
        };
        let (patterns, texts) = (all(&['a', 'b', '*'], 5), all(&['a', 'b'], 5));
        let mut both = [0, 0];
        for pattern in patterns.iter().filter(|pattern| !pattern.is_empty()) {
            let read = Pattern::parse(pattern).expect("a pattern");
            for text in &texts {
                let matches = read.matches(text);
                assert_eq!(matches, plain(pattern, text), "{pattern} {text}");
                both[usize::from(matches)] += 1;
            }
        }
        assert!(both.iter().all(|count| *count > 1000), "{both:?}");
        let slow = Pattern::parse(&"*a".repeat(100)).expect("a pattern");
        assert!(!slow.matches(&"a".repeat(99)) && slow.matches(&"é".repeat(1000).replace('é', "éa")));
        for wrong in [String::new(), "a\nb".to_owned(), "a".repeat(257)] {
            assert_eq!(Pattern::parse(&wrong), None);
        }
    }

    #[test]
    fn a_network_has_the_addresses_with_its_first_bits() {
        let network = |text: &str| Network::parse(text).expect("a network");
        let has = |text: &str, address: &str| network(text).has(address.parse().expect("an address"));
        assert!(has("10.0.0.0/8", "10.255.0.1") && !has("10.0.0.0/8", "11.0.0.0"));
        assert!(has("10.0.0.0/8", "::ffff:10.1.1.1"), "the same address by another way");
        assert!(has("0.0.0.0/0", "255.1.2.3") && !has("0.0.0.0/0", "::1") && has("::/0", "::1"));
        assert!(has("192.0.2.7", "192.0.2.7") && !has("192.0.2.7", "192.0.2.6"));
        assert!(has("2001:db8::/33", "2001:db8:7fff::1") && !has("2001:db8::/33", "2001:db8:8000::1"));
        for wrong in ["10.1.0.0/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "a", "::/129", "10.0.0/8"] {
            assert_eq!(Network::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn who_is_read_as_it_is_shown() {
        for text in
            ["*", "uid:*", "uid:0", "uid:billing", "gid:adm", "cert:spiffe://prod/*", "token:ci", "address:10.0.0.0/8"]
        {
            assert_eq!(Who::parse(text).expect(text).to_string(), text);
        }
        for wrong in ["", "uid:", "uid:4294967296", "uid:a b", "user:x", "cert:", "address:host", "uid:-1"] {
            assert_eq!(Who::parse(wrong), None, "{wrong}");
        }
    }
}
