//! OST_READ and OST_WRITE messages: builds requests and parses replies (docs/protocol.md, "Data
//! (OST)"). The data of small transfers goes inside the messages (short I/O) and needs no bulk.

use super::budget::GrantReport;
use bytes::Bytes;
use lnet::Payload;
use rpc::{Bulk, ReplyMsg, Request};
use std::ops::Range;
use wire::brw::md_lengths;
use wire::checksum::ChecksumType;
use wire::format::bufs;
use wire::{
    Errno, Fid, HasTimes, NiobufRemote, OBD_BRW_ASYNC, OBD_BRW_FROM_GRANT, OBD_BRW_SYNC, OBD_FL_SHORT_IO,
    OBD_MD_FLATIME, OBD_MD_FLBLOCKS, OBD_MD_FLCKSUM, OBD_MD_FLCTIME, OBD_MD_FLFID, OBD_MD_FLFLAGS,
    OBD_MD_FLGRANT, OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLMTIME, OST_FALLOCATE, OST_PUNCH, OST_READ,
    OST_WRITE, ObdIoobj, Obdo, OstBody, OstId, StripeIndex, Time, Times, WireStruct, Writer,
};

/// Largest transfer in bytes that goes inside the messages, if the server supports it: Lustre's
/// default of `osc.*.short_io_bytes`.
pub(super) const SHORT_IO_BYTES_MAX: u64 = 16 << 10;

/// The `o_valid` bits of all times.
const ALL_TIMES: u64 = OBD_MD_FLATIME | OBD_MD_FLMTIME | OBD_MD_FLCTIME;

/// The ID of an object in messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectId {
    /// The object's ID in the layout EA.
    pub oi: OstId,
    /// The file that has the object; the OST stores this FID for checks.
    pub parent: Fid,
    /// The object's stripe number in the file.
    pub stripe: StripeIndex,
}

/// The parameters of reads and writes agreed with the server.
#[derive(Clone, Copy, Debug)]
pub(super) struct BrwParams {
    /// Largest transfer of one RPC in bytes.
    pub brw_bytes_max: u64,
    /// The checksum type; `None`: no checksums (`checksums=0`).
    pub checksum: Option<ChecksumType>,
    /// Whether the data of small transfers goes inside the messages (OBD_CONNECT_SHORTIO).
    pub short_io: bool,
    /// Whether the server writes to its disk before it replies to a write without grant.
    pub syncs_without_grant: bool,
}

/// The parameters of a write RPC.
#[derive(Debug)]
pub(super) struct WriteArgs<'a> {
    /// The object.
    pub object: ObjectId,
    /// Ranges and their bytes, in ascending order.
    pub ranges: &'a [(Range<u64>, Vec<Bytes>)],
    /// Whether the client has reserved the bytes from the grant. If not, the server may return
    /// ENOSPC ([`BrwParams::syncs_without_grant`]).
    pub granted: bool,
    /// The object's times.
    pub times: Times,
    /// Whether the request also sets the access time. It always sets the others.
    pub sets_atime: bool,
    /// The client's grant state.
    pub grant: GrantReport,
}

impl WriteArgs<'_> {
    fn checksum(&self, kind: ChecksumType) -> u32 {
        let ranges = self.ranges.iter().map(|(range, _)| range.clone());
        kind.of(ranges, self.ranges.iter().flat_map(|(_, data)| data))
    }
}

/// The attributes that identify an object in a request.
pub(super) fn obdo(object: ObjectId) -> Obdo {
    Obdo {
        o_valid: OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLFID,
        o_oi: object.oi,
        o_parent_seq: object.parent.f_seq,
        o_parent_oid: object.parent.f_oid,
        o_parent_ver: object.parent.f_ver,
        o_stripe_idx: object.stripe.0,
        ..Obdo::default()
    }
}

/// Puts the grant state into the fields that Lustre uses for it.
fn put_grant(oa: &mut Obdo, grant: GrantReport) {
    oa.o_valid |= OBD_MD_FLGRANT | OBD_MD_FLBLOCKS;
    oa.o_blocks = grant.dirty;
    oa.o_mode = u32::try_from(grant.undirty).unwrap_or(u32::MAX);
    oa.o_grant = grant.available;
}

/// Puts a checksum into the fields that Lustre uses for it.
fn put_checksum(oa: &mut Obdo, kind: ChecksumType, value: u32) {
    oa.o_valid |= OBD_MD_FLCKSUM | OBD_MD_FLFLAGS;
    oa.o_flags |= kind.flags();
    oa.o_nlink = value;
}

/// A read or write request. `short`: the data of a short write.
fn build_request(
    opc: u32,
    oa: Obdo,
    params: &BrwParams,
    niobufs: &[NiobufRemote],
    short: Option<Bytes>,
) -> Request {
    let descriptors = (params.brw_bytes_max >> 20).max(1) as u32;
    let io = ObdIoobj {
        ioo_oid: oa.o_oi,
        ioo_max_brw: (descriptors - 1) << 16,
        ioo_bufcnt: niobufs.len() as u32,
    };
    let mut list = Writer::new();
    niobufs.iter().for_each(|n| n.write(&mut list));
    let bufs = vec![
        OstBody { oa }.to_bytes(),
        io.to_bytes(),
        list.finish(),
        Bytes::new(),
        short.unwrap_or_default(),
    ];
    Request::new(opc, bufs)
}

/// An OST_WRITE of `args.ranges`.
pub(super) fn write_request(args: &WriteArgs<'_>, params: &BrwParams) -> Request {
    let mut oa = obdo(args.object);
    oa.o_valid |= OBD_MD_FLMTIME | OBD_MD_FLCTIME;
    let mut times = args.times;
    match args.sets_atime {
        true => oa.o_valid |= OBD_MD_FLATIME,
        false => times.atime = Time::default(),
    }
    oa.set_times(times);
    put_grant(&mut oa, args.grant);
    let pieces = || args.ranges.iter().flat_map(|(_, data)| data);
    if let Some(kind) = params.checksum {
        put_checksum(&mut oa, kind, args.checksum(kind));
    }
    let flags = match args.granted {
        true => OBD_BRW_FROM_GRANT | OBD_BRW_ASYNC,
        false if params.syncs_without_grant => OBD_BRW_SYNC,
        false => OBD_BRW_ASYNC,
    };
    let niobufs: Vec<NiobufRemote> = args
        .ranges
        .iter()
        .map(|(r, _)| NiobufRemote {
            rnb_offset: r.start,
            rnb_len: (r.end - r.start) as u32,
            rnb_flags: flags,
        })
        .collect();
    let bytes: u64 = niobufs.iter().map(|n| u64::from(n.rnb_len)).sum();
    let payload = Payload::from(pieces().cloned().collect::<Vec<_>>());
    let mut request = if params.short_io && niobufs.len() == 1 && bytes <= SHORT_IO_BYTES_MAX {
        oa.o_valid |= OBD_MD_FLFLAGS;
        oa.o_flags |= OBD_FL_SHORT_IO;
        build_request(OST_WRITE, oa, params, &niobufs, Some(payload.into_bytes()))
    } else {
        let lengths = md_lengths(args.ranges.iter().map(|(r, _)| r.clone()));
        let mut request = build_request(OST_WRITE, oa, params, &niobufs, None);
        request.bulk = Some(Bulk::Source(split(&payload, &lengths)));
        request
    };
    request.reply_len = (OstBody::SIZE + 4 * niobufs.len()) as u32;
    request
}

/// Splits a payload into memory descriptors of the given lengths, without a copy.
fn split(payload: &Payload, lengths: &[u32]) -> Vec<Payload> {
    let mut pieces = payload.iter().cloned();
    let mut rest = Bytes::new();
    lengths
        .iter()
        .map(|&length| {
            let mut wanted = length as usize;
            let mut descriptor = Vec::new();
            while wanted > 0 {
                if rest.is_empty() {
                    match pieces.next() {
                        Some(next) => rest = next,
                        None => break,
                    }
                }
                let part = rest.split_to(wanted.min(rest.len()));
                wanted -= part.len();
                descriptor.push(part);
            }
            Payload::from(descriptor)
        })
        .collect()
}

/// The result of an OST_WRITE.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteReply {
    /// New grant in bytes.
    pub granted: u64,
    /// Whether the server computed a different checksum: the client must then send the data again.
    pub corrupted: bool,
    /// Blocks of the object, of 512 bytes each, if reported.
    pub blocks: Option<u64>,
    /// Times of the object after the write, if reported.
    pub times: Option<Times>,
}

/// Parses the reply to an OST_WRITE.
pub(super) fn parse_write_reply(
    reply: &ReplyMsg,
    sent: &WriteArgs<'_>,
    params: &BrwParams,
) -> Result<WriteReply, Errno> {
    let oa = reply.get::<OstBody>(bufs::OST_BODY)?.oa;
    for rc in reply.buf(bufs::BRW_STATUSES).chunks_exact(4) {
        let rc = i32::from_le_bytes([rc[0], rc[1], rc[2], rc[3]]);
        if rc < 0 {
            return Err(Errno(-rc));
        }
    }
    let corrupted = match params.checksum {
        Some(kind) if oa.o_valid & OBD_MD_FLCKSUM != 0 => oa.o_nlink != sent.checksum(kind),
        _ => false,
    };
    let granted = if oa.o_valid & OBD_MD_FLGRANT != 0 {
        oa.o_grant
    } else {
        0
    };
    Ok(WriteReply {
        granted,
        corrupted,
        blocks: (oa.o_valid & OBD_MD_FLBLOCKS != 0).then_some(oa.o_blocks),
        times: (oa.o_valid & ALL_TIMES == ALL_TIMES).then(|| oa.times()),
    })
}

/// An OST_READ of one range.
pub(super) fn read_request(
    object: ObjectId,
    range: &Range<u64>,
    params: &BrwParams,
    grant: GrantReport,
) -> Request {
    let mut oa = obdo(object);
    put_grant(&mut oa, grant);
    if let Some(kind) = params.checksum {
        put_checksum(&mut oa, kind, 0);
    }
    let bytes = range.end - range.start;
    let niobufs = [NiobufRemote {
        rnb_offset: range.start,
        rnb_len: bytes as u32,
        rnb_flags: 0,
    }];
    if params.short_io && bytes <= SHORT_IO_BYTES_MAX {
        oa.o_valid |= OBD_MD_FLFLAGS;
        oa.o_flags |= OBD_FL_SHORT_IO;
        let mut request = build_request(OST_READ, oa, params, &niobufs, None);
        request.reply_len = OstBody::SIZE as u32 + bytes as u32;
        request
    } else {
        let mut request = build_request(OST_READ, oa, params, &niobufs, None);
        request.reply_len = OstBody::SIZE as u32;
        request.bulk = Some(Bulk::Sink(md_lengths([range.clone()])));
        request
    }
}

/// The file that a data request changes; `None`: the request changes no file.
pub(super) fn changed_file(request: &Request) -> Option<Fid> {
    // The buffers of a request begin after the `ptlrpc_body`.
    let body = request.bufs.get(bufs::OST_BODY - 1)?;
    let oa = OstBody::from_bytes(body).ok()?.oa;
    let file = Fid::new(oa.o_parent_seq, oa.o_parent_oid, oa.o_parent_ver);
    [OST_WRITE, OST_PUNCH, OST_FALLOCATE]
        .contains(&request.opc)
        .then_some(file)
}

/// The result of an OST_READ.
#[derive(Debug)]
pub(super) struct ReadReply {
    /// The bytes; short at the end of the object.
    pub data: Vec<Bytes>,
    /// New grant in bytes.
    pub granted: u64,
    /// Whether the checksum does not match: the client must then read again.
    pub corrupted: bool,
}

/// Parses the reply to an OST_READ of `range`.
pub(super) fn parse_read_reply(reply: &ReplyMsg, range: &Range<u64>) -> Result<ReadReply, Errno> {
    let oa = reply.get::<OstBody>(bufs::OST_BODY)?.oa;
    let mut left = reply.status.max(0) as usize;
    let pieces: Vec<Bytes> = if reply.bulk.is_empty() {
        reply
            .msg
            .bufs
            .get(bufs::BRW_READ_SHORT_IO)
            .cloned()
            .into_iter()
            .collect()
    } else {
        reply.bulk.iter().flat_map(|md| md.iter().cloned()).collect()
    };
    let mut data = Vec::with_capacity(pieces.len());
    for mut piece in pieces {
        piece.truncate(left);
        left -= piece.len();
        if !piece.is_empty() {
            data.push(piece);
        }
    }
    let corrupted = oa.o_valid & OBD_MD_FLCKSUM != 0
        && ChecksumType::from_flags(oa.o_flags)
            .is_some_and(|kind| oa.o_nlink != kind.of([range.clone()], &data));
    let granted = if oa.o_valid & OBD_MD_FLGRANT != 0 {
        oa.o_grant
    } else {
        0
    };
    Ok(ReadReply {
        data,
        granted,
        corrupted,
    })
}
