//! OST_READ and OST_WRITE as a server gets them: the checked parameters, the transfer of the data,
//! and the replies (docs/protocol.md, "Data (OST)"). OSTs serve them for objects, MDTs for the data
//! of files with a component there.

use std::ops::Range;

use super::{Reply, ServerRequest};
use bytes::Bytes;
use lnet::Payload;
use wire::format::bufs;
use wire::{
    Errno, Message, NiobufRemote, OBD_BRW_FROM_GRANT, OBD_BRW_SRVLOCK, OBD_BRW_SYNC, OBD_FL_SHORT_IO,
    OBD_MD_FLCKSUM, OBD_MD_FLFLAGS, OBD_MD_FLGROUP, OBD_MD_FLID, OST_BULK_PORTAL, ObdIoobj, Obdo, OstBody,
    WireStruct, brw::md_lengths, checksum::ChecksumType,
};

/// The largest number of ranges in one request: the pages of the largest transfer (4 MiB).
const RANGES_MAX: usize = 1024;
/// Size of a page of the client, bytes.
const PAGE_BYTES: u64 = 4096;

/// One contiguous range of the object, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
    /// `OBD_BRW_*`.
    flags: u32,
}

impl Span {
    /// The end of the range.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// Whether the client reserved this space with its grant.
    pub fn is_granted(&self) -> bool {
        self.flags & OBD_BRW_FROM_GRANT != 0
    }
}

/// The checked parameters of a read or a write.
#[derive(Clone, Debug)]
pub struct Brw {
    /// The attributes in the request.
    pub oa: Obdo,
    /// The object.
    pub object: ObdIoobj,
    /// The ranges, ascending; at least one.
    pub spans: Vec<Span>,
    /// Whether the data is inside the message instead of a bulk transfer.
    pub short_io: bool,
    /// The checksum type that the client requests; `None` if it requests none, or none that this
    /// target knows.
    pub checksum: Option<ChecksumType>,
}

impl Brw {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a range is empty, overlaps with another one or is out of order; `EFBIG` if one
    /// ends beyond `maxbytes`; `EPROTO` if all ranges together have more than `brw_size` bytes, or
    /// the request is malformed.
    pub fn parse(msg: &Message, brw_size: u32, maxbytes: u64) -> Result<Brw, Errno> {
        let oa = msg.get::<OstBody>(bufs::OST_BODY).map_err(|_| Errno::EPROTO)?.oa;
        let object: ObdIoobj = msg.get(bufs::BRW_IOOBJ).map_err(|_| Errno::EPROTO)?;
        let ranges = msg.buf(bufs::BRW_NIOBUFS);
        let count = object.ioo_bufcnt as usize;
        if count == 0 || count > RANGES_MAX || ranges.len() < count * NiobufRemote::SIZE {
            tracing::debug!(
                count,
                bytes = ranges.len(),
                "malformed read or write: bad number of ranges"
            );
            return Err(Errno::EPROTO);
        }
        let mut spans: Vec<Span> = Vec::with_capacity(count);
        for range in ranges.chunks_exact(NiobufRemote::SIZE).take(count) {
            let r = NiobufRemote::from_bytes(range).map_err(|_| Errno::EPROTO)?;
            let span = Span {
                offset: r.rnb_offset,
                len: r.rnb_len,
                flags: r.rnb_flags,
            };
            let ascends = spans.last().is_none_or(|previous| previous.end() <= span.offset);
            let end = span.offset.checked_add(span.len.into());
            if span.len == 0 || !ascends || end.is_none() {
                return Err(Errno::EINVAL);
            }
            if end.is_none_or(|e| e > maxbytes) {
                return Err(Errno::EFBIG);
            }
            spans.push(span);
        }
        let flags = if oa.o_valid & OBD_MD_FLFLAGS != 0 {
            oa.o_flags
        } else {
            0
        };
        let brw = Brw {
            oa,
            object,
            spans,
            short_io: flags & OBD_FL_SHORT_IO != 0,
            checksum: (oa.o_valid & OBD_MD_FLCKSUM != 0)
                .then(|| ChecksumType::from_flags(flags))
                .flatten(),
        };
        if brw.byte_count() > u64::from(brw_size) {
            tracing::debug!(
                bytes = brw.byte_count(),
                brw_size,
                "malformed read or write: longer than the negotiated brw_size"
            );
            return Err(Errno::EPROTO);
        }
        Ok(brw)
    }

    /// The byte ranges of the object, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.spans.iter().map(|s| s.offset..s.end())
    }

    /// Total bytes of all ranges.
    pub fn byte_count(&self) -> u64 {
        self.spans.iter().map(|s| u64::from(s.len)).sum()
    }

    /// Offsets of the first and of the last byte.
    pub fn extent(&self) -> (u64, u64) {
        let start = self.spans.first().map_or(0, |s| s.offset);
        (start, self.spans.last().map_or(start, |s| s.end() - 1))
    }

    fn any_span_has(&self, flag: u32) -> bool {
        self.spans.iter().any(|s| s.flags & flag != 0)
    }

    /// Treats the space of all ranges as reserved by the client's grant.
    pub fn mark_granted(&mut self) {
        self.spans
            .iter_mut()
            .for_each(|span| span.flags |= OBD_BRW_FROM_GRANT);
    }

    /// Whether the client holds no lock and requests the server to take one.
    pub fn requests_lock(&self) -> bool {
        self.any_span_has(OBD_BRW_SRVLOCK)
    }

    /// Whether the data must be on disk before the reply.
    pub fn requests_sync(&self) -> bool {
        self.any_span_has(OBD_BRW_SYNC)
    }

    /// Lengths of the memory descriptors that the client attached, bytes; `EPROTO` if their number
    /// does not match the ranges.
    fn descriptor_lengths(&self, req: &ServerRequest) -> Result<Vec<u32>, Errno> {
        let lengths = md_lengths(self.ranges());
        let attached = req.bulk_mds((self.object.ioo_max_brw >> 16) as usize + 1);
        if attached != lengths.len() {
            lnet::warn_rate_limited!(peer = %req.peer, expected = lengths.len(), found = attached, "malformed read or write: wrong number of memory descriptors");
            return Err(Errno::EPROTO);
        }
        Ok(lengths)
    }

    /// Fetches the data of a write: from the message or by bulk transfer.
    ///
    /// # Errors
    ///
    /// `EPROTO` if the client sends another number of bytes, or the error of the transfer.
    pub async fn fetch(&self, req: &ServerRequest) -> Result<Vec<Bytes>, Errno> {
        let data = if self.short_io {
            vec![req.bytes(bufs::BRW_SHORT_IO)]
        } else {
            let lengths = self.descriptor_lengths(req)?;
            let payloads = req.bulk_get(OST_BULK_PORTAL, &lengths).await?;
            payloads.into_iter().flat_map(Payload::into_pieces).collect()
        };
        let found: u64 = data.iter().map(|d| d.len() as u64).sum();
        if found != self.byte_count() {
            lnet::warn_rate_limited!(peer = %req.peer, expected = self.byte_count(), found, "write refused: wrong number of data bytes");
            return Err(Errno::EPROTO);
        }
        Ok(data)
    }

    /// The data of each range of a write.
    pub fn split(&self, data: Vec<Bytes>) -> impl Iterator<Item = (&Span, Vec<Bytes>)> {
        let (mut data, mut rest) = (data.into_iter(), Bytes::new());
        let spans = self.spans.iter();
        spans.map(move |span| (span, take_bytes(&mut data, &mut rest, span.len as usize)))
    }

    /// The checksum of the data that the request asks for. Marks it in the reply's attributes.
    pub fn put_checksum(&self, oa: &mut Obdo, data: &[Bytes]) -> Option<u32> {
        let ty = self.checksum?;
        let sum = ty.of(self.ranges(), data);
        oa.o_valid |= OBD_MD_FLCKSUM | OBD_MD_FLFLAGS;
        oa.o_flags |= ty.flags();
        oa.set_o_cksum(sum);
        Some(sum)
    }

    /// The attributes of a reply, with the object's ID.
    pub fn reply_oa(&self) -> Obdo {
        Obdo {
            o_oi: self.object.ioo_oid,
            o_valid: OBD_MD_FLID | OBD_MD_FLGROUP,
            ..Obdo::default()
        }
    }

    /// The memory descriptors that receive the data of a read.
    ///
    /// # Errors
    ///
    /// `EPROTO` if their number does not match the ranges.
    pub fn sink(&self, req: &ServerRequest) -> Result<Sink, Errno> {
        Ok(Sink(match self.short_io {
            true => None,
            false => Some(self.descriptor_lengths(req)?),
        }))
    }

    /// Bytes of grant that the request uses, if its client does not send the number
    /// (`GRANT_PARAM`): the whole pages of the ranges from grant.
    pub fn page_bytes_from_grant(&self) -> u64 {
        let pages = |s: &Span| s.end().div_ceil(PAGE_BYTES) - s.offset / PAGE_BYTES;
        self.spans
            .iter()
            .filter(|s| s.is_granted())
            .map(|s| pages(s) * PAGE_BYTES)
            .sum()
    }
}

/// Where the data of a read goes: the lengths of the client's memory descriptors, or into the
/// reply.
#[derive(Clone, Debug)]
pub struct Sink(Option<Vec<u32>>);

impl Sink {
    /// The reply to a read: sends the data, which ends early at the end of the object.
    ///
    /// # Errors
    ///
    /// The error of the transfer.
    pub async fn reply(self, req: &ServerRequest, oa: Obdo, data: Vec<Bytes>) -> Result<Reply, Errno> {
        let bytes: usize = data.iter().map(Bytes::len).sum();
        let mut bufs = vec![OstBody { oa }.to_bytes()];
        match self.0 {
            None => bufs.push(Payload::from(data).into_bytes()),
            Some(lengths) => {
                // The client waits for one transfer per descriptor, even for one without data.
                let (mut data, mut rest) = (data.into_iter(), Bytes::new());
                let mds = lengths
                    .iter()
                    .map(|&len| Payload::from(take_bytes(&mut data, &mut rest, len as usize)));
                req.bulk_put(OST_BULK_PORTAL, mds.collect()).await?;
            }
        }
        Ok(Reply::new(bufs).with_status(i32::try_from(bytes).unwrap_or(i32::MAX)))
    }
}

/// The reply to a write, with the status of each range.
pub fn write_reply(oa: Obdo, results: &[i32]) -> Reply {
    let rcs: Vec<u8> = results.iter().flat_map(|rc| rc.to_le_bytes()).collect();
    Reply::new(vec![OstBody { oa }.to_bytes(), rcs.into()])
}

/// Takes the next `len` bytes of the data: first from `rest`, then from `data`.
fn take_bytes(data: &mut impl Iterator<Item = Bytes>, rest: &mut Bytes, mut len: usize) -> Vec<Bytes> {
    let mut out = Vec::new();
    while len > 0 {
        if rest.is_empty() {
            match data.next() {
                Some(next) => *rest = next,
                None => break,
            }
            continue;
        }
        let piece = rest.split_to(len.min(rest.len()));
        len -= piece.len();
        out.push(piece);
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use proptest::prelude::*;
    use wire::PtlrpcBody;

    use super::*;

    fn message(oa: Obdo, object: ObdIoobj, ranges: &[NiobufRemote]) -> Message {
        let ranges: Vec<u8> = ranges.iter().flat_map(|r| r.to_bytes().to_vec()).collect();
        Message::new(
            &PtlrpcBody::default(),
            [OstBody { oa }.to_bytes(), object.to_bytes(), ranges.into()],
        )
    }

    /// The write of "hello\n" in the capture `d2_create_write_close`.
    #[test]
    fn captured_short_io_write_parses() {
        let oa = Obdo {
            o_valid: 0x180_0000_0b18_4f2d,
            o_flags: 0x40_6000,
            o_blocks: 0x7000,
            ..Obdo::default()
        };
        let object = ObdIoobj {
            ioo_max_brw: 0xffff_0000,
            ioo_bufcnt: 1,
            ..ObdIoobj::default()
        };
        let range = NiobufRemote {
            rnb_offset: 0,
            rnb_len: 6,
            rnb_flags: 0x4_0420,
        };
        let brw = Brw::parse(&message(oa, object, &[range]), 4 << 20, u64::MAX).unwrap();
        assert!(brw.short_io && !brw.requests_sync() && !brw.requests_lock() && brw.spans[0].is_granted());
        assert_eq!(brw.checksum, Some(ChecksumType::T10Ip4K));
        assert_eq!(
            (brw.byte_count(), brw.extent(), brw.page_bytes_from_grant()),
            (6, (0, 5), 4096)
        );
    }

    #[test]
    fn data_is_split_at_the_ranges() {
        let mut data = [&b"abc"[..], b"", b"defgh"].map(Bytes::from_static).into_iter();
        let mut rest = Bytes::new();
        assert_eq!(take_bytes(&mut data, &mut rest, 4).concat(), b"abcd");
        assert_eq!(take_bytes(&mut data, &mut rest, 2).concat(), b"ef");
        assert_eq!(take_bytes(&mut data, &mut rest, 9).concat(), b"gh");
        assert!(take_bytes(&mut data, &mut rest, 1).is_empty());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            bufs in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..6),
            count in any::<u32>(),
        ) {
            let mut msg = Message::new(&PtlrpcBody::default(), bufs.into_iter().map(Bytes::from));
            if let Some(object) = msg.bufs.get_mut(2).filter(|b| b.len() >= ObdIoobj::SIZE) {
                let counted = ObdIoobj { ioo_bufcnt: count % 40, ..ObdIoobj::from_bytes(object).unwrap() };
                *object = counted.to_bytes();
            }
            if let Ok(brw) = Brw::parse(&msg, 4 << 20, 1 << 44) {
                prop_assert!(brw.byte_count() <= 4 << 20 && !brw.spans.is_empty());
                prop_assert!(brw.extent().1 < 1 << 44);
                let _ = brw.page_bytes_from_grant();
            }
        }
    }
}
