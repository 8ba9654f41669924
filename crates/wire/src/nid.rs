//! Network identifiers, such as `192.168.1.4@tcp`, `10.0.0.1@tcp3` and `0@lo`: 64-bit numbers in
//! messages.

use crate::codec::{Reader, Result, WireError, Writer};
use crate::consts::lnet::{LOLND, O2IBLND, SOCKLND};
use crate::layout::{Shape, WireField};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A NID in the 8-byte form: bits 63 to 48 are the network type, 47 to 32 the network number, 31 to
/// 0 the address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Nid(pub u64);

impl Nid {
    /// `0@lo`: this node itself.
    pub const LO: Nid = Nid((LOLND as u64) << 48);
    /// Any node.
    pub const ANY: Nid = Nid(u64::MAX);

    /// `addr@tcp<number>`.
    pub const fn tcp(addr: Ipv4Addr, number: u16) -> Nid {
        Nid((SOCKLND as u64) << 48 | (number as u64) << 32 | addr.to_bits() as u64)
    }

    /// The address, as IPv4.
    pub const fn addr(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.0 as u32)
    }

    /// The network: type and number, without the address.
    pub const fn net(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The network's type (`SOCKLND`, `LOLND`, ...).
    pub const fn lnd(self) -> u32 {
        self.net() >> 16
    }

    /// The network's number: 3 in `tcp3`.
    pub const fn net_number(self) -> u16 {
        self.net() as u16
    }

    /// Whether this is `0@lo`.
    pub const fn is_lo(self) -> bool {
        self.0 == Self::LO.0
    }

    /// Whether this is on a TCP network.
    pub const fn is_tcp(self) -> bool {
        self.lnd() == SOCKLND
    }
}

impl fmt::Display for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Nid::ANY {
            return f.write_str("<any>");
        }
        match self.lnd() {
            LOLND => write!(f, "{}@lo", self.0 as u32)?,
            SOCKLND => write!(f, "{}@tcp", self.addr())?,
            // Not supported, but error messages show such NIDs.
            O2IBLND => write!(f, "{}@o2ib", self.addr())?,
            other => write!(f, "{}@<{other}>", self.addr())?,
        }
        match self.net_number() {
            0 => Ok(()),
            n => write!(f, "{n}"),
        }
    }
}

impl fmt::Debug for Nid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Nid {
    type Err = WireError;

    /// Parses a NID; a text without `@` is an address on `tcp`.
    fn from_str(s: &str) -> Result<Nid> {
        let malformed = || WireError::Text {
            what: "NID",
            expected: "an address such as 192.168.1.4@tcp, 10.0.0.1@tcp3 or 0@lo",
            text: s.chars().take(64).collect(),
        };
        let (addr, net) = s.split_once('@').unwrap_or((s, "tcp"));
        if net == "lo" {
            return if addr == "0" {
                Ok(Nid::LO)
            } else {
                Err(malformed())
            };
        }
        let number = match net.strip_prefix("tcp").ok_or_else(malformed)? {
            "" => 0,
            digits if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| malformed())?
            }
            _ => return Err(malformed()),
        };
        Ok(Nid::tcp(addr.parse().map_err(|_| malformed())?, number))
    }
}

impl From<Nid> for u64 {
    fn from(nid: Nid) -> u64 {
        nid.0
    }
}

impl WireField for Nid {
    const BYTES: usize = 8;
    const ZERO: Self = Nid(0);
    const SHAPE: Shape = Shape::Number;
    fn read_field(r: &mut Reader<'_>) -> Result<Self> {
        r.u64().map(Nid)
    }
    fn write_field(&self, w: &mut Writer) {
        w.u64(self.0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Nid;

    #[test]
    fn nids_have_the_text_form_of_lustre() {
        for (text, number) in [
            ("192.168.1.2@tcp", 0x0002_0000_c0a8_0102),
            ("10.0.0.1@tcp3", 0x0002_0003_0a00_0001),
            ("0@lo", 0x0009_0000_0000_0000),
        ] {
            let nid: Nid = text.parse().unwrap();
            assert_eq!(nid.0, number);
            assert_eq!(nid.to_string(), text);
        }
        assert_eq!("127.0.0.1".parse::<Nid>().unwrap().to_string(), "127.0.0.1@tcp");
    }

    #[test]
    fn malformed_nids_are_refused() {
        for text in [
            "",
            "1.2.3@tcp",
            "1.2.3.4@o2ib",
            "1.2.3.4@tcpx",
            "1.2.3.4@tcp99999",
            "7@lo",
            "1.2.3.4@tcp+1",
        ] {
            assert!(text.parse::<Nid>().is_err(), "{text}");
        }
    }
}
