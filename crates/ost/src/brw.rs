//! Parses and checks the body of OST_READ and OST_WRITE (docs/protocol.md, "Data (OST)").

use std::ops::Range;

use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    Errno, Message, NiobufRemote, OBD_BRW_FROM_GRANT, OBD_BRW_SRVLOCK, OBD_BRW_SYNC, OBD_FL_SHORT_IO,
    OBD_MD_FLCKSUM, OBD_MD_FLFLAGS, ObdIoobj, Obdo, OstBody, WireStruct, brw::md_lengths,
    checksum::ChecksumType,
};

/// The largest number of ranges in one request: the pages of the largest transfer (4 MiB).
const RANGES_MAX: usize = 1024;
/// Size of a page of the client, bytes.
const PAGE_BYTES: u64 = 4096;

/// One contiguous range of the object, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// `OBD_BRW_*`.
    flags: u32,
}

impl Span {
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// Whether the client reserved this space with its grant.
    pub(crate) fn is_granted(&self) -> bool {
        self.flags & OBD_BRW_FROM_GRANT != 0
    }
}

/// The checked parameters of a read or a write.
#[derive(Clone, Debug)]
pub(crate) struct Brw {
    pub(crate) oa: Obdo,
    pub(crate) object: ObdIoobj,
    pub(crate) spans: Vec<Span>,
    /// Whether the data is inside the message instead of a bulk transfer.
    pub(crate) short_io: bool,
    /// The checksum type that the client requests; `None` if it requests none, or none that this
    /// target knows.
    pub(crate) checksum: Option<ChecksumType>,
}

impl Brw {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a range is empty, overlaps with another one or is out of order; `EFBIG` if one
    /// ends beyond `maxbytes`; `EPROTO` if all ranges together have more than `brw_size` bytes, or
    /// the request is malformed.
    pub(crate) fn parse(msg: &Message, brw_size: u32, maxbytes: u64) -> Result<Brw, Errno> {
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
        if brw.len() > u64::from(brw_size) {
            tracing::debug!(
                bytes = brw.len(),
                brw_size,
                "malformed read or write: longer than the negotiated brw_size"
            );
            return Err(Errno::EPROTO);
        }
        Ok(brw)
    }

    /// The byte ranges of the object, ascending.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.spans.iter().map(|s| s.offset..s.end())
    }

    /// Total bytes of all ranges.
    pub(crate) fn len(&self) -> u64 {
        self.spans.iter().map(|s| u64::from(s.len)).sum()
    }

    /// Offsets of the first and of the last byte.
    pub(crate) fn extent(&self) -> (u64, u64) {
        let start = self.spans.first().map_or(0, |s| s.offset);
        (start, self.spans.last().map_or(start, |s| s.end() - 1))
    }

    fn any_span_has(&self, flag: u32) -> bool {
        self.spans.iter().any(|s| s.flags & flag != 0)
    }

    /// Treats the space of all ranges as reserved by the client's grant.
    pub(crate) fn mark_granted(&mut self) {
        self.spans
            .iter_mut()
            .for_each(|span| span.flags |= OBD_BRW_FROM_GRANT);
    }

    /// Whether the client holds no lock and requests the server to take one.
    pub(crate) fn requests_lock(&self) -> bool {
        self.any_span_has(OBD_BRW_SRVLOCK)
    }

    /// Whether the data must be on disk before the reply.
    pub(crate) fn requests_sync(&self) -> bool {
        self.any_span_has(OBD_BRW_SYNC)
    }

    /// Lengths of the memory descriptors that the client attached, bytes; `EPROTO` if their number
    /// does not match the ranges.
    pub(crate) fn descriptor_lengths(&self, req: &ServerRequest) -> Result<Vec<u32>, Errno> {
        let lengths = md_lengths(self.ranges());
        let attached = req.bulk_mds((self.object.ioo_max_brw >> 16) as usize + 1);
        if attached != lengths.len() {
            lnet::warn_rate_limited!(peer = %req.peer, expected = lengths.len(), found = attached, "malformed read or write: wrong number of memory descriptors");
            return Err(Errno::EPROTO);
        }
        Ok(lengths)
    }

    /// Bytes of grant that the request uses, if its client does not send the number
    /// (`GRANT_PARAM`): the whole pages of the ranges from grant.
    pub(crate) fn page_bytes_from_grant(&self) -> u64 {
        let pages = |s: &Span| s.end().div_ceil(PAGE_BYTES) - s.offset / PAGE_BYTES;
        self.spans
            .iter()
            .filter(|s| s.is_granted())
            .map(|s| pages(s) * PAGE_BYTES)
            .sum()
    }
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
            (brw.len(), brw.extent(), brw.page_bytes_from_grant()),
            (6, (0, 5), 4096)
        );
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
                prop_assert!(brw.len() <= 4 << 20 && !brw.spans.is_empty());
                prop_assert!(brw.extent().1 < 1 << 44);
                let _ = brw.page_bytes_from_grant();
            }
        }
    }
}
