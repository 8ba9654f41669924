//! Capture files of tcpdump, parsed down to the data of TCP segments.
//!
//! The parser takes the bytes of a file and does no I/O. It supports classic pcap (not pcapng) with
//! frames of Ethernet, of Linux's device "any", of loopback, or of raw IP, and only IPv4, which
//! socklnd uses. It skips other packets and fragments of packets.

use bytes::Bytes;
use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice};
use flate2::read::MultiGzDecoder;
use pcap_parser::pcap::{PcapHeader, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};
use pcap_parser::{Linktype, nom};
use std::io::{self, Read};
use std::net::SocketAddrV4;
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
    header: PcapHeader,
    /// Offset of the next packet's header in the file, in bytes.
    offset: usize,
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
        let mut header = match parse_pcap_header(&file) {
            Ok((_, header)) if !header.is_modified_format() => header,
            Err(nom::Err::Incomplete(_)) => {
                return Err(WireError::Short {
                    what: "pcap header",
                    expected: PcapHeader::new().size(),
                    found: file.len(),
                });
            }
            _ => {
                return Err(WireError::Magic {
                    what: "pcap",
                    expected: PcapHeader::new().magic_number.into(),
                    found: u32::from_le_bytes(*file.first_chunk().unwrap_or(&[0; 4])).into(),
                });
            }
        };
        // The upper half has flags.
        header.network.0 &= 0xffff;
        let offset = header.size();
        match header.network {
            Linktype::NULL
            | Linktype::ETHERNET
            | Linktype::RAW
            | Linktype::LINUX_SLL
            | Linktype::LINUX_SLL2 => Ok(Capture { file, header, offset }),
            Linktype(found) => {
                let expected = "Ethernet 1, Linux cooked 113 or 276, raw IP 101 or loopback 0";
                Err(WireError::Value {
                    what: "pcap link type",
                    expected,
                    found: found.unsigned_abs().into(),
                })
            }
        }
    }

    /// The next TCP segment. `None` at the end of the file, and at a packet that reaches beyond the
    /// end.
    pub fn next_segment(&mut self) -> Option<Segment> {
        let parse_frame = match self.header.is_bigendian() {
            true => parse_pcap_frame_be,
            false => parse_pcap_frame,
        };
        let units_per_us = match self.header.is_nanosecond_precision() {
            true => 1000,
            false => 1,
        };
        loop {
            let (rest, packet) = parse_frame(&self.file[self.offset..]).ok()?;
            self.offset = self.file.len() - rest.len();
            let time_us = u64::from(packet.ts_sec) * 1_000_000 + u64::from(packet.ts_usec) / units_per_us;
            if let Some(segment) = self.parse_segment(time_us, packet.data) {
                return Some(segment);
            }
        }
    }

    fn parse_segment(&self, time_us: u64, packet: &[u8]) -> Option<Segment> {
        let packet = match self.header.network {
            Linktype::ETHERNET => LaxSlicedPacket::from_ethernet(packet).ok()?,
            Linktype::LINUX_SLL => after_ether_type(packet, 14, 16)?,
            Linktype::LINUX_SLL2 => after_ether_type(packet, 0, 20)?,
            Linktype::NULL => LaxSlicedPacket::from_ip(packet.get(4..)?).ok()?,
            _ => LaxSlicedPacket::from_ip(packet).ok()?,
        };
        let (Some(LaxNetSlice::Ipv4(ip)), Some(TransportSlice::Tcp(tcp))) = (packet.net, packet.transport)
        else {
            return None;
        };
        // With segmentation offload, packets above 64 KiB have a total length of 0 in the IP
        // header: then all captured bytes count.
        let (header, payload) = (ip.header(), ip.payload().payload);
        let captured = header.slice().len() + payload.len();
        Some(Segment {
            time_us,
            from: SocketAddrV4::new(header.source_addr(), tcp.source_port()),
            to: SocketAddrV4::new(header.destination_addr(), tcp.destination_port()),
            seq: tcp.sequence_number(),
            syn: tcp.syn(),
            data: self.file.slice_ref(tcp.payload()),
            cut: usize::from(header.total_len()).saturating_sub(captured) as u32,
        })
    }
}

impl Iterator for Capture {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        self.next_segment()
    }
}

/// Parses a packet from the byte `payload_offset` on, whose ethertype is at `type_offset`.
fn after_ether_type(packet: &[u8], type_offset: usize, payload_offset: usize) -> Option<LaxSlicedPacket<'_>> {
    let ether_type = u16::from_be_bytes(*packet.get(type_offset..)?.first_chunk()?);
    let payload = packet.get(payload_offset..)?;
    Some(LaxSlicedPacket::from_ether_type(EtherType(ether_type), payload))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Capture, Segment};
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};

    #[test]
    fn other_files_are_refused() {
        assert!(Capture::open(Bytes::from_static(b"short")).is_err());
        assert!(Capture::open(Bytes::from(vec![7; 100])).is_err());
    }

    /// A capture of one packet.
    fn capture(magic: u32, is_big_endian: bool, link: u32, packet: &[u8]) -> Capture {
        let len = packet.len() as u32;
        let word = if is_big_endian {
            u32::to_be_bytes
        } else {
            u32::to_le_bytes
        };
        let words = [magic, 0, 0, 0, 1 << 16, link, 5, 7000, len, len].map(word);
        Capture::open([words.as_flattened(), packet].concat().into()).unwrap()
    }

    #[test]
    fn all_byte_orders_precisions_and_link_types_are_read() {
        // Of the 44 bytes of the IP packet, the capture lacks the last one.
        let ip = [
            &[0x45, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2][..],
            &[
                3, 253, 3, 220, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x18, 0, 0, 0, 0, 0, 0,
            ],
            b"dat",
        ]
        .concat();
        let headers: [(u32, &[u8]); 6] = [
            (0, &[2, 0, 0, 0]),
            (1, &[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 8, 0]),
            (1, &[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0x81, 0, 0, 5, 8, 0]),
            (101, &[]),
            (113, &[0, 0, 0, 1, 0, 6, 1, 1, 1, 1, 1, 1, 0, 0, 8, 0]),
            (276, &[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 1, 1, 1, 1, 1, 1, 0, 0]),
        ];
        let formats = [
            (0xa1b2_c3d4, false, 5_007_000),
            (0xa1b2_c3d4, true, 5_007_000),
            (0xa1b2_3c4d, false, 5_000_007),
            (0xa1b2_3c4d, true, 5_000_007),
        ];
        for (link, header) in headers {
            for (magic, is_big_endian, time_us) in formats {
                let packet = [header, &ip].concat();
                let expected = Segment {
                    time_us,
                    from: "10.0.0.1:1021".parse().unwrap(),
                    to: "10.0.0.2:988".parse().unwrap(),
                    seq: 9,
                    syn: false,
                    data: Bytes::from_static(b"dat"),
                    cut: 1,
                };
                let segments: Vec<_> = capture(magic, is_big_endian, link, &packet).collect();
                assert_eq!(segments, [expected], "{link} {magic:x}");
            }
        }
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
