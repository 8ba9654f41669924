//! Reassembles TCP segments into the items of socklnd streams: connection requests, hellos, frames.
//!
//! A capture may begin in the middle of a connection and may lack packets. [`Flows`] orders the
//! segments of each direction by sequence number, and after a gap searches for the next item.

use crate::pcap::Segment;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddrV4;
use wire::codec::Result;
use wire::consts::lnet::{
    KSOCK_MSG_LNET, KSOCK_MSG_NOOP, LNET_PROTO_ACCEPTOR_MAGIC, LNET_PROTO_MAGIC, SOCKLND,
};
use wire::frame::FrameHead;
use wire::layout::WireStruct;
use wire::lnet::{KsockHelloMsgNid4, KsockMsgHdr, LnetAcceptorConnreq, LnetHdrNid4};

/// Maximum number of segments that wait for a missing one. With more, the missing bytes count as
/// lost.
const WAITING_MAX: usize = 256;

/// One item of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamItem {
    /// The request for a connection to a NID.
    Connreq(LnetAcceptorConnreq),
    /// A hello: the NIDs of both sides and the connection's type.
    Hello(KsockHelloMsgNid4),
    /// A frame: headers and payload.
    Frame(FrameHead, Bytes),
    /// The number of bytes that could not be parsed, or that the capture lacks.
    Lost(usize),
}

/// An item with its time and connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The capture time of the segment that completes the item, in microseconds since 1970.
    pub time_us: u64,
    /// The sender's address.
    pub from: SocketAddrV4,
    /// The receiver's address.
    pub to: SocketAddrV4,
    /// The item.
    pub item: StreamItem,
    /// The bytes of the item; empty for lost ones.
    pub raw: Bytes,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Direction {
    /// The sequence number of the next byte; `None` before the first segment.
    next: Option<u32>,
    /// Segments behind a gap, by sequence number.
    waiting: BTreeMap<u32, Segment>,
    /// Bytes in order that are not parsed yet.
    buffer: BytesMut,
    /// Number of lost bytes that no event has reported yet.
    lost: usize,
    /// Whether `buffer` starts with an item, complete or not.
    synchronized: bool,
}

/// All connections of a capture.
#[derive(Debug, Default)]
pub struct Flows {
    directions: HashMap<(SocketAddrV4, SocketAddrV4), Direction>,
}

impl Flows {
    /// No connections yet.
    pub fn new() -> Flows {
        Flows::default()
    }

    /// Adds the next segment of the capture and returns the completed items.
    pub fn feed(&mut self, segment: Segment) -> Vec<Event> {
        let (from, to) = (segment.from, segment.to);
        let direction = self.directions.entry((from, to)).or_default();
        let mut events = Vec::new();
        if segment.syn {
            *direction = Direction {
                next: Some(segment.seq.wrapping_add(1)),
                synchronized: true,
                ..Direction::default()
            };
        } else if !segment.data.is_empty() {
            direction.receive(segment, &mut |time_us, item, raw| {
                events.push(Event {
                    time_us,
                    from,
                    to,
                    item,
                    raw,
                });
            });
        }
        events
    }
}

/// Takes an item, with its capture time in microseconds and its bytes.
type Emit<'a> = &'a mut dyn FnMut(u64, StreamItem, Bytes);

impl Direction {
    /// Appends a segment if it is in order, otherwise stores it until the bytes before it arrive.
    fn receive(&mut self, segment: Segment, emit: Emit<'_>) {
        let next = *self.next.get_or_insert(segment.seq);
        let ahead = segment.seq.wrapping_sub(next) as i32;
        if ahead > 0 {
            self.waiting.insert(segment.seq, segment);
            if self.waiting.len() > WAITING_MAX {
                self.skip_gap(emit);
            }
            return;
        }
        self.append(segment, ahead.unsigned_abs(), emit);
        self.drain(emit);
    }

    /// Appends a segment whose first `old` bytes were appended or skipped before.
    fn append(&mut self, segment: Segment, old: u32, emit: Emit<'_>) {
        let captured = segment.data.len() as u32;
        if old < captured {
            self.next = self.next.map(|n| n.wrapping_add(captured - old));
            self.buffer.extend_from_slice(&segment.data[old as usize..]);
            self.parse(segment.time_us, emit);
        }
        let cut_bytes = segment.cut.saturating_sub(old.saturating_sub(captured));
        if cut_bytes > 0 {
            self.skip(cut_bytes);
        }
    }

    /// Appends waiting segments that are in order now.
    fn drain(&mut self, emit: Emit<'_>) {
        while let Some(next) = self.next {
            let behind = |seq: u32| next.wrapping_sub(seq) as i32 >= 0;
            let Some(seq) = self.waiting.keys().copied().find(|s| behind(*s)) else {
                return;
            };
            if let Some(segment) = self.waiting.remove(&seq) {
                self.append(segment, next.wrapping_sub(seq), emit);
            }
        }
    }

    /// Counts the missing bytes as lost and continues with the earliest waiting segment.
    fn skip_gap(&mut self, emit: Emit<'_>) {
        let next = self.next.unwrap_or(0);
        let Some(seq) = self.waiting.keys().copied().min_by_key(|s| s.wrapping_sub(next)) else {
            return;
        };
        self.skip(seq.wrapping_sub(next));
        self.drain(emit);
    }

    /// Counts the unparsed and the next `missing` bytes as lost.
    fn skip(&mut self, missing: u32) {
        self.lost += self.buffer.len() + missing as usize;
        self.buffer.clear();
        self.synchronized = false;
        self.next = self.next.map(|n| n.wrapping_add(missing));
    }

    /// Emits the complete items in the buffer.
    fn parse(&mut self, time_us: u64, emit: Emit<'_>) {
        loop {
            if !self.synchronized && !self.resync() {
                return;
            }
            if self.lost > 0 {
                emit(
                    time_us,
                    StreamItem::Lost(std::mem::take(&mut self.lost)),
                    Bytes::new(),
                );
            }
            match next_item(&self.buffer) {
                Ok(None) => return,
                Ok(Some((item, len))) => {
                    let raw = self.buffer.split_to(len).freeze();
                    let item = match item {
                        StreamItem::Frame(head, _) => {
                            StreamItem::Frame(head, raw.slice(len - head.payload_len()..))
                        }
                        other => other,
                    };
                    emit(time_us, item, raw);
                }
                Err(_) => {
                    self.lost += 1;
                    self.buffer.advance(1);
                    self.synchronized = false;
                }
            }
        }
    }

    /// Drops bytes up to the next possible start of an item. If there is none, keeps as many bytes
    /// as an incomplete header may have and returns `false`.
    fn resync(&mut self) -> bool {
        let found = (0..self.buffer.len()).find(|at| may_start_item(&self.buffer[*at..]));
        let keep = KsockMsgHdr::SIZE + LnetHdrNid4::SIZE - 1;
        let drop = found.unwrap_or(self.buffer.len().saturating_sub(keep));
        self.lost += drop;
        self.buffer.advance(drop);
        self.synchronized = found.is_some();
        self.synchronized
    }
}

fn first_word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|w| u32::from_le_bytes(*w))
}

/// Whether `bytes` start like an item. A NOOP is too short to be recognized.
fn may_start_item(bytes: &[u8]) -> bool {
    match first_word(bytes) {
        Some(LNET_PROTO_ACCEPTOR_MAGIC | LNET_PROTO_MAGIC) => true,
        Some(KSOCK_MSG_LNET) => match FrameHead::parse(bytes) {
            Ok(Some((FrameHead::Lnet { header, .. }, _))) => [header.src_nid, header.dest_nid]
                .iter()
                .all(|n| n.net() >> 16 == SOCKLND),
            _ => false,
        },
        _ => false,
    }
}

/// The item at the start of `bytes` and its length; `None` if `bytes` have only a part of it. The
/// payload of a frame is empty: the caller cuts it out.
fn next_item(bytes: &[u8]) -> Result<Option<(StreamItem, usize)>> {
    let Some(word) = first_word(bytes) else {
        return Ok(None);
    };
    match word {
        LNET_PROTO_ACCEPTOR_MAGIC if bytes.len() < LnetAcceptorConnreq::SIZE => Ok(None),
        LNET_PROTO_ACCEPTOR_MAGIC => {
            let request = LnetAcceptorConnreq::from_bytes(bytes)?;
            request.check()?;
            Ok(Some((StreamItem::Connreq(request), LnetAcceptorConnreq::SIZE)))
        }
        LNET_PROTO_MAGIC if bytes.len() < KsockHelloMsgNid4::SIZE => Ok(None),
        LNET_PROTO_MAGIC => {
            let hello = KsockHelloMsgNid4::from_bytes(bytes)?;
            hello.check()?;
            let len = KsockHelloMsgNid4::SIZE + 4 * hello.kshm_nips as usize;
            Ok((bytes.len() >= len).then_some((StreamItem::Hello(hello), len)))
        }
        KSOCK_MSG_NOOP | KSOCK_MSG_LNET => {
            let Some((head, len)) = FrameHead::parse(bytes)? else {
                return Ok(None);
            };
            let whole = len + head.payload_len();
            Ok((bytes.len() >= whole).then_some((StreamItem::Frame(head, Bytes::new()), whole)))
        }
        found => {
            let expected = "a connection request, a hello or a frame";
            Err(wire::WireError::Value {
                what: "socklnd stream",
                expected,
                found: found.into(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Flows, StreamItem};
    use crate::pcap::Segment;
    use bytes::Bytes;
    use wire::frame::{FrameHead, LnetOp};
    use wire::{LnetHdrNid4, LnetPut, Nid};

    fn segment(seq: u32, data: &[u8]) -> Segment {
        let (from, to) = ("10.0.0.1:1021".parse().unwrap(), "10.0.0.2:988".parse().unwrap());
        Segment {
            time_us: u64::from(seq),
            from,
            to,
            seq,
            syn: false,
            data: Bytes::copy_from_slice(data),
            cut: 0,
        }
    }

    fn frame(payload: &[u8]) -> Vec<u8> {
        let nid: Nid = "10.0.0.1@tcp".parse().unwrap();
        let msg = LnetOp::Put(LnetPut::default());
        let header = LnetHdrNid4::new((nid, 1), (nid, 1), &msg, payload.len() as u32);
        [
            &FrameHead::Lnet {
                cookies: [0; 2],
                header,
                msg,
            }
            .build()[..],
            payload,
        ]
        .concat()
    }

    fn payloads(flows: &mut Flows, segments: Vec<Segment>) -> Vec<Vec<u8>> {
        let events = segments
            .into_iter()
            .flat_map(|s| flows.feed(s))
            .collect::<Vec<_>>();
        let frames = events.into_iter().filter_map(|e| match e.item {
            StreamItem::Frame(_, payload) => Some(payload.to_vec()),
            _ => None,
        });
        frames.collect()
    }

    #[test]
    fn reordered_and_repeated_segments_are_put_in_order() {
        let bytes = [frame(b"one"), frame(b"two")].concat();
        let parts = vec![
            segment(0, &bytes[..50]),
            segment(100, &bytes[100..]),
            segment(20, &bytes[20..100]),
            segment(0, &bytes[..50]),
        ];
        assert_eq!(payloads(&mut Flows::new(), parts), [b"one", b"two"]);
    }

    #[test]
    fn a_capture_that_begins_inside_a_frame_continues_with_the_next_frame() {
        let bytes = [frame(b"lost"), frame(b"kept")].concat();
        assert_eq!(
            payloads(&mut Flows::new(), vec![segment(7, &bytes[30..])]),
            [b"kept"]
        );
    }

    /// Feeds three frames, of which the capture lacks the end of the second one. `order` has the
    /// segments in the order of the capture; segments 0 and 1 are the two halves of the first
    /// frame.
    fn payloads_with_a_cut_frame(order: [usize; 5]) -> Vec<Vec<u8>> {
        let (one, two, three) = (frame(b"one"), frame(b"two"), frame(b"three"));
        let two_at = one.len() as u32;
        let cut = Segment {
            cut: two.len() as u32 - 30,
            ..segment(two_at, &two[..30])
        };
        let segments = [
            segment(0, &one[..50]),
            segment(50, &one[50..]),
            cut,
            segment(two_at + two.len() as u32, &three),
        ];
        payloads(&mut Flows::new(), order.map(|i| segments[i].clone()).to_vec())
    }

    #[test]
    fn a_segment_cut_by_the_capture_loses_only_its_frame() {
        let kept = [&b"one"[..], b"three"];
        assert_eq!(payloads_with_a_cut_frame([0, 1, 2, 3, 3]), kept);
        assert_eq!(payloads_with_a_cut_frame([0, 2, 1, 3, 3]), kept, "behind a gap");
        assert_eq!(payloads_with_a_cut_frame([0, 1, 2, 2, 3]), kept, "repeated");
    }

    #[test]
    fn sequence_numbers_wrap_around() {
        let bytes = frame(b"wrapped");
        let begin = u32::MAX - 40;
        let parts = vec![
            segment(begin, &bytes[..60]),
            segment(begin.wrapping_add(60), &bytes[60..]),
        ];
        assert_eq!(payloads(&mut Flows::new(), parts), [b"wrapped"]);
    }
}
