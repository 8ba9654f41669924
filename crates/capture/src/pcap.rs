//! Capture files of tcpdump, parsed down to the data of TCP segments.
//!
//! The parser takes the bytes of a file and does no I/O. It supports classic pcap (not pcapng) with
//! frames of Ethernet, of Linux's device "any", of loopback, or of raw IP, and only IPv4, which
//! socklnd uses. It skips other packets and fragments of packets.

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use wire::codec::{Result, WireError};

/// One TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The capture time, in microseconds since 1970.
    pub time_us: u64,
    /// The sender's address.
    pub from: SocketAddrV4,
    /// The receiver's address.
    pub to: SocketAddrV4,
    /// The sequence number of the first byte.
    pub seq: u32,
    /// Whether the segment opens one direction of a connection (SYN).
    pub syn: bool,
    /// The captured data.
    pub data: Bytes,
    /// Number of data bytes that were not captured.
    pub cut: u32,
}

/// The packets of a capture file.
#[derive(Clone, Debug)]
pub struct Capture {
    file: Bytes,
    /// Offset of the next packet's header in the file, in bytes.
    offset: usize,
    big_endian: bool,
    /// Whether times have nanoseconds instead of microseconds.
    nanoseconds: bool,
    /// The link type, `LINK_*`.
    link: u32,
}

/// Length of the file's header, in bytes.
const FILE_HEADER: usize = 24;
/// Length of a packet's header, in bytes.
const PACKET_HEADER: usize = 16;

// Link types of pcap.
const LINK_NULL: u32 = 0;
const LINK_ETHERNET: u32 = 1;
const LINK_RAW: u32 = 101;
const LINK_SLL: u32 = 113;
const LINK_SLL2: u32 = 276;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_VLAN: u16 = 0x8100;
const PROTOCOL_TCP: u8 = 6;
const TCP_SYN: u8 = 0x02;

fn be16(b: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*b.get(offset..)?.first_chunk()?))
}

fn be32(b: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*b.get(offset..)?.first_chunk()?))
}

/// The content of a capture file, unpacked if it is gzipped.
///
/// # Errors
///
/// The gzipped file is damaged.
pub fn unpack(file: Vec<u8>) -> io::Result<Bytes> {
    if !file.starts_with(&[0x1f, 0x8b]) {
        return Ok(file.into());
    }
    let mut unpacked = Vec::new();
    MultiGzDecoder::new(&file[..]).read_to_end(&mut unpacked)?;
    Ok(unpacked.into())
}

impl Capture {
    /// Opens a capture.
    ///
    /// # Errors
    ///
    /// The file is not classic pcap, or its link type is not supported.
    pub fn open(file: Bytes) -> Result<Capture> {
        let short = WireError::Short {
            what: "pcap header",
            expected: FILE_HEADER,
            found: file.len(),
        };
        if file.len() < FILE_HEADER {
            return Err(short);
        }
        let (big_endian, nanoseconds) = match be32(&file, 0).unwrap_or(0) {
            0xa1b2_c3d4 => (true, false),
            0xd4c3_b2a1 => (false, false),
            0xa1b2_3c4d => (true, true),
            0x4d3c_b2a1 => (false, true),
            found => {
                return Err(WireError::Magic {
                    what: "pcap",
                    expected: 0xa1b2_c3d4,
                    found: found.into(),
                });
            }
        };
        let mut capture = Capture {
            file,
            offset: FILE_HEADER,
            big_endian,
            nanoseconds,
            link: 0,
        };
        capture.link = capture.word(20) & 0xffff;
        match capture.link {
            LINK_NULL | LINK_ETHERNET | LINK_RAW | LINK_SLL | LINK_SLL2 => Ok(capture),
            found => {
                let expected = "Ethernet 1, Linux cooked 113 or 276, raw IP 101 or loopback 0";
                Err(WireError::Value {
                    what: "pcap link type",
                    expected,
                    found: found.into(),
                })
            }
        }
    }

    fn word(&self, offset: usize) -> u32 {
        let word = be32(&self.file, offset).unwrap_or(0);
        if self.big_endian { word } else { word.swap_bytes() }
    }

    /// The next TCP segment. `None` at the end of the file, and at a packet that reaches beyond the
    /// end.
    pub fn next_segment(&mut self) -> Option<Segment> {
        loop {
            if self.file.len() < self.offset + PACKET_HEADER {
                return None;
            }
            let (seconds, fraction) = (self.word(self.offset), self.word(self.offset + 4));
            let len = self.word(self.offset + 8) as usize;
            let begin = self.offset + PACKET_HEADER;
            let end = begin.checked_add(len).filter(|end| *end <= self.file.len())?;
            self.offset = end;
            let time_us = u64::from(seconds) * 1_000_000
                + u64::from(fraction) / if self.nanoseconds { 1000 } else { 1 };
            if let Some(segment) = self.parse_segment(time_us, self.file.slice(begin..end)) {
                return Some(segment);
            }
        }
    }

    fn parse_segment(&self, time_us: u64, packet: Bytes) -> Option<Segment> {
        let ip = match self.link {
            LINK_ETHERNET if be16(&packet, 12)? == ETHERTYPE_VLAN => ip_after(&packet, 16, 18)?,
            LINK_ETHERNET => ip_after(&packet, 12, 14)?,
            LINK_SLL => ip_after(&packet, 14, 16)?,
            LINK_SLL2 => ip_after(&packet, 0, 20)?,
            LINK_NULL => packet.get(4..).map(|_| packet.slice(4..))?,
            _ => packet,
        };
        parse_tcp(time_us, &ip)
    }
}

impl Iterator for Capture {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        self.next_segment()
    }
}

/// The IP packet from the byte `ip_offset` on; `None` if the ethertype at `ethertype_offset` is not
/// IPv4.
fn ip_after(packet: &Bytes, ethertype_offset: usize, ip_offset: usize) -> Option<Bytes> {
    if be16(packet, ethertype_offset)? != ETHERTYPE_IPV4 || packet.len() < ip_offset {
        return None;
    }
    Some(packet.slice(ip_offset..))
}

fn parse_tcp(time_us: u64, ip: &Bytes) -> Option<Segment> {
    let first = *ip.first()?;
    let ip_len = usize::from(first & 0xf) * 4;
    let fragment = be16(ip, 6)? & 0x3fff;
    if first >> 4 != 4 || ip_len < 20 || *ip.get(9)? != PROTOCOL_TCP || fragment != 0 {
        return None;
    }
    let (from, to) = (
        Ipv4Addr::from_bits(be32(ip, 12)?),
        Ipv4Addr::from_bits(be32(ip, 16)?),
    );
    // With segmentation offload, packets above 64 KiB have a total length of 0 in the IP header:
    // then all captured bytes count.
    let total = match usize::from(be16(ip, 2)?) {
        0 => ip.len(),
        n => n,
    };
    let tcp_len = usize::from(*ip.get(ip_len + 12)? >> 4) * 4;
    let data_offset = ip_len + tcp_len;
    if tcp_len < 20 || ip.len() < data_offset || total < data_offset {
        return None;
    }
    Some(Segment {
        time_us,
        from: SocketAddrV4::new(from, be16(ip, ip_len)?),
        to: SocketAddrV4::new(to, be16(ip, ip_len + 2)?),
        seq: be32(ip, ip_len + 4)?,
        syn: *ip.get(ip_len + 13)? & TCP_SYN != 0,
        data: ip.slice(data_offset..total.min(ip.len())),
        cut: total.saturating_sub(ip.len()) as u32,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Capture;
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};

    #[test]
    fn other_files_are_refused() {
        assert!(Capture::open(Bytes::from_static(b"short")).is_err());
        assert!(Capture::open(Bytes::from(vec![7; 100])).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 24..400), len in 0u32..400) {
            let mut bytes = bytes;
            bytes[..4].copy_from_slice(&0xa1b2_c3d4u32.to_le_bytes());
            bytes[20..24].copy_from_slice(&1u32.to_le_bytes());
            if bytes.len() > 60 {
                bytes[32..36].copy_from_slice(&len.to_le_bytes());
                bytes[52..55].copy_from_slice(&[8, 0, 0x45]);
            }
            assert!(Capture::open(Bytes::from(bytes)).unwrap().count() < 30);
        }
    }
}
