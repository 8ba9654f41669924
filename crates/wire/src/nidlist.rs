//! Lists of NIDs in settings: `10.0.0.*@tcp 192.168.[1-4,9].[0-254/2]@tcp1 0@lo`.
//!
//! Ranges are separated by white space. Each part of an address is a number, `*`, or a bracket of
//! numbers, ranges `FROM-TO` and ranges with a stride `FROM-TO/STRIDE`; `*@tcp` is the whole
//! network.

use crate::codec::{Result, WireError};
use crate::consts::lnet::LOLND;
use crate::nid::Nid;
use std::fmt;
use std::str::FromStr;

/// Maximum number of ranges in a list.
const RANGES_MAX: usize = 1024;

/// A set of NIDs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NidList {
    ranges: Vec<Range>,
}

/// One range of NIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    /// The range as the user wrote it.
    text: String,
    /// Type and number of the network, as in [`Nid::net`].
    net: u32,
    /// The allowed values of each byte of the address.
    bytes: [Numbers; 4],
}

/// A set of numbers from 0 to 255, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers([u128; 2]);

impl Numbers {
    const ALL: Numbers = Numbers([u128::MAX; 2]);

    fn has(self, n: u8) -> bool {
        self.0[usize::from(n / 128)] >> (n % 128) & 1 == 1
    }

    fn overlaps(self, other: Numbers) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }

    fn parse(text: &str) -> Option<Numbers> {
        if text == "*" {
            return Some(Numbers::ALL);
        }
        let list = match text.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']')?,
            None if text.contains(['-', ',', '/']) => return None,
            None => text,
        };
        let mut numbers = Numbers([0; 2]);
        for part in list.split(',') {
            let (range, step) = part.split_once('/').unwrap_or((part, "1"));
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            let (from, to, step) = (parse_number(from)?, parse_number(to)?, parse_number(step)?);
            if from > to || step == 0 {
                return None;
            }
            for n in (from..=to).step_by(usize::from(step)) {
                numbers.0[usize::from(n / 128)] |= 1 << (n % 128);
            }
        }
        Some(numbers)
    }
}

/// Parses a number from 0 to 255 of digits only, without a sign.
fn parse_number(text: &str) -> Option<u8> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl Range {
    fn parse(text: &str) -> Option<Range> {
        let (address, net) = text.split_once('@')?;
        let bytes = if net == "lo" {
            (address == "0" || address == "*").then_some([Numbers::parse("0")?; 4])?
        } else if address == "*" {
            [Numbers::ALL; 4]
        } else {
            let mut bytes = [Numbers::ALL; 4];
            let mut parts = address.split('.');
            for byte in &mut bytes {
                *byte = Numbers::parse(parts.next()?)?;
            }
            parts.next().is_none().then_some(bytes)?
        };
        // The name of the network has the same syntax as in a NID.
        let net = if net == "lo" {
            LOLND << 16
        } else {
            format!("0.0.0.0@{net}").parse::<Nid>().ok()?.net()
        };
        let text = text.to_owned();
        Some(Range { text, net, bytes })
    }

    fn overlaps(&self, other: &Range) -> bool {
        let mut bytes = self.bytes.iter().zip(&other.bytes);
        self.net == other.net && bytes.all(|(a, b)| a.overlaps(*b))
    }

    fn has(&self, nid: Nid) -> bool {
        let octets = nid.addr().octets();
        self.net == nid.net() && self.bytes.iter().zip(octets).all(|(numbers, n)| numbers.has(n))
    }
}

impl NidList {
    /// Whether a NID is in one of the ranges.
    pub fn has(&self, nid: Nid) -> bool {
        self.ranges.iter().any(|range| range.has(nid))
    }

    /// Whether the lists have a NID in common.
    pub fn overlaps(&self, other: &NidList) -> bool {
        let overlaps_other = |range: &Range| other.ranges.iter().any(|r| r.overlaps(range));
        self.ranges.iter().any(overlaps_other)
    }

    /// Whether there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl FromStr for NidList {
    type Err = WireError;

    fn from_str(text: &str) -> Result<NidList> {
        let refused = |expected, part: &str| WireError::Text {
            what: "list of NIDs",
            expected,
            text: part.chars().take(64).collect(),
        };
        let parts: Vec<&str> = text.split_whitespace().collect();
        if parts.len() > RANGES_MAX {
            return Err(refused("a list of at most 1024 ranges", text));
        }
        let syntax = "ranges such as 10.0.0.*@tcp, 10.0.[1-4].[0-255]@tcp or 0@lo, with spaces between them";
        let ranges = parts
            .iter()
            .map(|part| Range::parse(part).ok_or_else(|| refused(syntax, part)));
        let ranges = ranges.collect::<Result<_>>()?;
        Ok(NidList { ranges })
    }
}

impl fmt::Display for NidList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<&str> = self.ranges.iter().map(|r| r.text.as_str()).collect();
        f.write_str(&texts.join(" "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::NidList;
    use crate::nid::Nid;
    use proptest::prelude::{any, proptest};

    fn has(list: &str, nid: &str) -> bool {
        list.parse::<NidList>().unwrap().has(nid.parse().unwrap())
    }

    #[test]
    fn ranges_have_the_syntax_of_lustre() {
        assert!(has("10.0.0.*@tcp 0@lo", "10.0.0.255@tcp"));
        assert!(!has("10.0.0.*@tcp", "10.0.1.0@tcp"));
        assert!(!has("10.0.0.*@tcp", "10.0.0.1@tcp1"));
        assert!(has("10.0.0.*@tcp 0@lo", "0@lo"));
        assert!(!has("*@tcp", "0@lo"));
        assert!(has("*@tcp3", "1.2.3.4@tcp3"));
        assert!(has("192.168.[1-4,9].[0-254/2]@tcp", "192.168.9.254@tcp"));
        assert!(!has("192.168.[1-4,9].[0-254/2]@tcp", "192.168.9.253@tcp"));
        assert!(!has("192.168.[1-4,9].[0-254/2]@tcp", "192.168.5.2@tcp"));
        assert!("".parse::<NidList>().unwrap().is_empty());
        let list: NidList = " 10.0.0.*@tcp \n 0@lo".parse().unwrap();
        assert_eq!(list.to_string(), "10.0.0.*@tcp 0@lo");
    }

    #[test]
    fn lists_overlap_when_a_nid_is_in_both() {
        let overlap = |a: &str, b: &str| {
            let (a, b): (NidList, NidList) = (a.parse().unwrap(), b.parse().unwrap());
            assert_eq!(a.overlaps(&b), b.overlaps(&a));
            a.overlaps(&b)
        };
        assert!(overlap("10.0.0.[1-9]@tcp", "10.*.0.9@tcp 10.1.1.1@tcp"));
        assert!(overlap("*@tcp", "1.2.3.4@tcp") && overlap("0@lo", "0@lo"));
        assert!(!overlap("10.0.0.[1-9]@tcp", "10.0.0.[10-20]@tcp"));
        assert!(!overlap("10.0.[0-254/2].*@tcp", "10.0.[1-255/2].*@tcp"));
        assert!(!overlap("10.0.0.1@tcp", "10.0.0.1@tcp1") && !overlap("", "*@tcp"));
        assert!(!overlap("*@tcp", "0@lo"));
    }

    #[test]
    fn malformed_ranges_are_refused() {
        for text in [
            "10.0.0.1",
            "10.0.0@tcp",
            "10.0.0.1.2@tcp",
            "10.0.0.256@tcp",
            "10.0.0.[3-1]@tcp",
            "10.0.0.[1-4/0]@tcp",
            "10.0.0.1-4@tcp",
            "10.0.0.[1@tcp",
            "1@lo",
            "10.0.0.1@o2ib",
            "10.0.0.+1@tcp",
            "10.0.0.[]@tcp",
            "@",
            "*@",
        ] {
            assert!(text.parse::<NidList>().is_err(), "{text}");
        }
    }

    #[test]
    fn list_with_too_many_ranges_is_refused_with_its_own_text() {
        let list = "10.0.0.1@tcp ".repeat(1025);
        let error = list.parse::<NidList>().unwrap_err().to_string();
        assert!(error.starts_with("list of NIDs: \"10.0.0.1@tcp "), "{error}");
        assert!(error.ends_with("is not a list of at most 1024 ranges"), "{error}");
    }

    proptest! {
        #[test]
        fn a_nid_is_in_its_own_list_and_arbitrary_text_never_panics(addr: u32, net in 0u16..9, text: String) {
            let nid = Nid::tcp(addr.into(), net);
            assert!(nid.to_string().parse::<NidList>().unwrap().has(nid));
            let _ = text.parse::<NidList>();
        }

        #[test]
        fn a_star_matches_every_number(last in any::<u8>()) {
            assert!(has("1.2.3.*@tcp", &format!("1.2.3.{last}@tcp")));
        }
    }
}
