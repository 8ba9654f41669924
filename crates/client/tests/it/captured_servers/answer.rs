//! Converts captured replies for our client: with our client's identifiers, the requested connect
//! flags only, and the requested checksum type.

use crate::captured_servers::ids::{Ids, Side};
use crate::captured_servers::key;
use crate::captured_servers::library::{Exchange, Library};
use crate::captured_servers::server::{ClientRequest, State};
use bytes::Bytes;
use wire::brw::md_lengths;
use wire::checksum::ChecksumType;
use wire::dirpage::PAGE;
use wire::format::Rmf;
use wire::{
    DISP_IT_EXECD, DISP_LOOKUP_EXECD, DISP_LOOKUP_POS, LDLM_FL_BLOCKED_MASK, LdlmReply, LuDirpage,
    LuSeqRange, LustreHandle, MdtBody, MdtRecCreate, Message, Nid, OBD_FL_CKSUM_ALL, OBD_FL_SHORT_IO,
    ObdConnectData, OstBody, WireStruct,
};

/// The sequence that MDT0000 gives to our client; each other MDT gives the next one. No captured
/// client used them.
const OWN_SEQ: u64 = 0x7_0000_0400;
/// Number of MDTs.
const MDTS: u64 = 2;

/// The MDT that gave this sequence to our client.
pub fn mdt_of_own_sequence(seq: u64) -> Option<u32> {
    let index = seq.checked_sub(OWN_SEQ).filter(|index| *index < MDTS)?;
    Some(index as u32)
}

/// The index in the UUID of an MDT.
pub fn mdt_index(target: &str) -> Option<u32> {
    let digits = target.split_once("-MDT")?.1.get(..4)?;
    u32::from_str_radix(digits, 16).ok()
}

/// The answer to a request.
pub struct Answer {
    pub message: Message,
    /// Data to put to the client before the reply, one piece for each memory descriptor.
    pub bulk: Vec<Bytes>,
    /// Data to fetch from the client before the reply: the length in bytes of each memory
    /// descriptor.
    pub fetch: Vec<u32>,
    /// Whether the lock is blocked: a completion callback grants it later.
    pub blocked: bool,
}

/// Learns the pairs of identifiers from a request and its captured counterpart.
pub fn learn_ids(ids: &mut Ids, req: &ClientRequest, exchange: &Exchange) {
    let (ours, theirs) = (&req.msg, &exchange.request.msg);
    let bufs = ours.bufs.iter().zip(&theirs.bufs);
    for (rmf, (our_buf, their_buf)) in req.format.request.iter().zip(bufs) {
        match rmf {
            Rmf::Conn => {
                let handle = |buf: &Bytes| LustreHandle::from_bytes(buf).unwrap_or_default().cookie;
                ids.learn_handle(handle(our_buf), handle(their_buf));
            }
            Rmf::DlmReq if req.body.pb_opc == wire::LDLM_ENQUEUE => {
                let handle = |buf: &Bytes| {
                    wire::LdlmRequest::handles(buf)
                        .ok()
                        .and_then(|h| h.first().copied())
                };
                ids.learn_handle(handle(our_buf).unwrap_or(0), handle(their_buf).unwrap_or(0));
            }
            Rmf::RecReint => {
                let rec = |buf: &Bytes| MdtRecCreate::from_bytes(buf).unwrap_or_default();
                let (our_rec, their_rec) = (rec(our_buf), rec(their_buf));
                let creates = |r: &MdtRecCreate| {
                    r.cr_opcode == wire::REINT_CREATE
                        || r.cr_opcode == wire::REINT_OPEN
                            && u64::from(r.cr_flags_l) & wire::MDS_OPEN_CREAT != 0
                };
                if creates(&our_rec) && creates(&their_rec) {
                    ids.learn_fid(our_rec.cr_fid2, their_rec.cr_fid2);
                }
            }
            _ => {}
        }
    }
}

/// A captured reply for our client. `used_before`: another answer has used the reply, so this
/// answer needs new handles.
pub fn from_capture(
    state: &mut State,
    library: &Library,
    (req, target): (&ClientRequest, &str),
    exchange: &Exchange,
    used_before: bool,
) -> Answer {
    if exchange.format.name != req.format.name && exchange.format.name == "RQF_LDLM_INTENT_OPEN" {
        return open_as_lookup(state, req, exchange);
    }
    let mut message = state
        .ids
        .message(Side::Ours, exchange.format, true, &exchange.reply);
    let mut body = exchange.reply_body;
    body.pb_mbits = req.body.pb_mbits;
    if body.pb_transno != 0 {
        body.pb_transno = state.next_transno();
        body.pb_last_committed = body.pb_transno;
    }
    message.set_body(&body);
    let mut answer = Answer {
        message,
        bulk: exchange.bulk.clone(),
        fetch: Vec::new(),
        blocked: false,
    };
    match req.body.pb_opc {
        wire::MGS_CONNECT | wire::MDS_CONNECT | wire::OST_CONNECT => adapt_connect(req, &mut answer),
        wire::LDLM_ENQUEUE => adapt_enqueue(state, &mut answer, exchange, used_before),
        wire::LLOG_ORIGIN_HANDLE_NEXT_BLOCK => replace_nids(&mut answer),
        wire::SEQ_QUERY => give_own_sequence(&mut answer, target),
        wire::OST_READ => fill_read(library, req, exchange, &mut answer),
        wire::OST_WRITE => prepare_write(req, &mut answer),
        wire::MDS_READPAGE => select_pages(state, req, &mut answer),
        _ => {}
    }
    answer
}

/// The directory pages from our client's offset on, up to its buffer size.
fn select_pages(state: &State, req: &ClientRequest, answer: &mut Answer) {
    let requested = req.msg.get::<MdtBody>(1).unwrap_or_default();
    let all = answer.bulk.concat();
    let from = all.chunks(PAGE).skip_while(|page| {
        let head = LuDirpage::from_bytes(page).unwrap_or_default();
        head.ldp_hash_end <= requested.mbo_size && requested.mbo_size != 0
    });
    let pages: Vec<u8> = from
        .take(requested.mbo_nlink as usize / PAGE)
        .flatten()
        .copied()
        .collect();
    if let Ok(mut captured_body) = answer.message.get::<MdtBody>(1)
        && captured_body.mbo_valid & wire::OBD_MD_FLSIZE != 0
    {
        captured_body.mbo_size = pages.len() as u64;
        replace_struct(answer, 1, &captured_body);
    }
    answer.bulk = vec![state.ids.pages(&pages.into())];
}

/// Converts the captured reply to an open into the reply to a lookup: both begin with the same
/// fields.
fn open_as_lookup(state: &mut State, req: &ClientRequest, exchange: &Exchange) -> Answer {
    let mut message = state
        .ids
        .message(Side::Ours, exchange.format, true, &exchange.reply);
    message.bufs.truncate(5);
    message.bufs.resize(req.format.reply.len(), Bytes::new());
    let mut body = exchange.reply_body;
    body.pb_transno = 0;
    message.set_body(&body);
    let mut answer = Answer {
        message,
        bulk: Vec::new(),
        fetch: Vec::new(),
        blocked: false,
    };
    if let Ok(mut rep) = answer.message.get::<LdlmReply>(1) {
        rep.lock_policy_res1 = DISP_IT_EXECD | DISP_LOOKUP_EXECD | DISP_LOOKUP_POS;
        replace_struct(&mut answer, 1, &rep);
    }
    adapt_enqueue(state, &mut answer, exchange, true);
    answer
}

/// Replaces the structure at the beginning of a buffer.
fn replace_struct<T: WireStruct>(answer: &mut Answer, index: usize, value: &T) {
    if let Some(buf) = answer.message.bufs.get_mut(index) {
        let mut bytes = value.to_bytes().to_vec();
        bytes.extend_from_slice(buf.get(T::SIZE..).unwrap_or_default());
        *buf = bytes.into();
    }
}

/// Leaves only the requested connect flags and checksum types.
fn adapt_connect(req: &ClientRequest, answer: &mut Answer) {
    let requested = req.msg.get::<ObdConnectData>(4).unwrap_or_default();
    if let Ok(mut granted) = answer.message.get::<ObdConnectData>(1) {
        granted.ocd_connect_flags &= requested.ocd_connect_flags;
        granted.ocd_connect_flags2 &= requested.ocd_connect_flags2;
        granted.ocd_cksum_types &= requested.ocd_cksum_types;
        replace_struct(answer, 1, &granted);
    }
}

/// Gives the lock and the open file new handles if another answer has used the captured handles.
fn adapt_enqueue(state: &mut State, answer: &mut Answer, exchange: &Exchange, used_before: bool) {
    let Ok(mut rep) = answer.message.get::<LdlmReply>(1) else {
        return;
    };
    if used_before && rep.lock_handle.cookie != 0 {
        let cookie = state.fresh_handle();
        state.ids.learn_handle(cookie, rep.lock_handle.cookie);
        rep.lock_handle = LustreHandle { cookie };
        replace_struct(answer, 1, &rep);
    }
    let index = exchange.format.reply_index(Rmf::MdtBody).unwrap_or(0);
    if let Ok(mut body) = answer.message.get::<MdtBody>(index)
        && used_before
        && index > 0
        && body.mbo_open_handle.cookie != 0
    {
        let cookie = state.fresh_handle();
        state.ids.learn_handle(cookie, body.mbo_open_handle.cookie);
        body.mbo_open_handle = LustreHandle { cookie };
        replace_struct(answer, index, &body);
    }
    answer.blocked = u64::from(rep.lock_flags) & LDLM_FL_BLOCKED_MASK != 0 && rep.lock_handle.cookie != 0;
}

/// Replaces the servers' NIDs in the configuration by the NID of this node.
fn replace_nids(answer: &mut Answer) {
    let Some(buf) = answer.message.bufs.get_mut(2) else {
        return;
    };
    let mut bytes = buf.to_vec();
    for server in ["10.88.0.11@tcp", "10.88.0.12@tcp"] {
        let nid = server.parse::<Nid>().unwrap().0.to_le_bytes();
        for at in 0..bytes.len().saturating_sub(7) {
            if bytes[at..at + 8] == nid {
                bytes[at..at + 8].copy_from_slice(&Nid::LO.0.to_le_bytes());
            }
        }
    }
    *buf = bytes.into();
}

/// Gives our client a sequence of its own.
pub fn give_own_sequence(answer: &mut Answer, target: &str) {
    let index = mdt_index(target).unwrap_or(0);
    let start = OWN_SEQ + u64::from(index);
    let range = LuSeqRange {
        lsr_start: start,
        lsr_end: start + 1,
        lsr_index: index,
        ..LuSeqRange::default()
    };
    replace_struct(answer, 1, &range);
}

/// The lengths of the request's memory descriptors.
pub fn bulk_lengths(req: &ClientRequest) -> Vec<u32> {
    md_lengths(key::ranges(&req.msg))
}

/// The data of the requested ranges, in the requested transfer mode and with the requested
/// checksum.
fn fill_read(library: &Library, req: &ClientRequest, exchange: &Exchange, answer: &mut Answer) {
    let (Ok(requested), Ok(mut captured_oa)) = (req.msg.get::<OstBody>(1), answer.message.get::<OstBody>(1))
    else {
        return;
    };
    let object = library.object_data(&exchange.capture, &requested.oa.o_oi);
    let (mut data, mut data_ranges) = (Vec::new(), Vec::new());
    for range in key::ranges(&req.msg) {
        let end = range.end.min(object.len() as u64).max(range.start);
        let bytes = object.get(range.start as usize..end as usize);
        data.extend_from_slice(bytes.unwrap_or_default());
        data_ranges.push(range.start..end);
    }
    let data = Bytes::from(data);
    let flags = requested.oa.o_flags & OBD_FL_CKSUM_ALL;
    if let Some(kind) = ChecksumType::from_flags(flags) {
        captured_oa.oa.o_flags = captured_oa.oa.o_flags & !OBD_FL_CKSUM_ALL | flags;
        captured_oa.oa.o_nlink = kind.of(data_ranges, [&data]);
    }
    replace_struct(answer, 1, &captured_oa);
    let mut body = exchange.reply_body;
    body.pb_status = data.len() as i32;
    answer.message.set_body(&body);
    answer.message.bufs.resize(3, Bytes::new());
    answer.bulk.clear();
    if requested.oa.o_flags & OBD_FL_SHORT_IO != 0 {
        answer.message.bufs[2] = data;
        return;
    }
    answer.message.bufs.truncate(2);
    let mut rest = data;
    for len in bulk_lengths(req) {
        answer.bulk.push(rest.split_to(rest.len().min(len as usize)));
    }
}

/// Makes the answer fetch the data, and return the client's checksum unchecked.
fn prepare_write(req: &ClientRequest, answer: &mut Answer) {
    let Ok(sent) = req.msg.get::<OstBody>(1) else {
        return;
    };
    answer.bulk.clear();
    if sent.oa.o_flags & OBD_FL_SHORT_IO == 0 {
        answer.fetch = bulk_lengths(req);
    }
    if let Ok(mut captured_oa) = answer.message.get::<OstBody>(1) {
        captured_oa.oa.o_flags =
            captured_oa.oa.o_flags & !OBD_FL_CKSUM_ALL | sent.oa.o_flags & OBD_FL_CKSUM_ALL;
        captured_oa.oa.o_nlink = sent.oa.o_nlink;
        replace_struct(answer, 1, &captured_oa);
    }
}
