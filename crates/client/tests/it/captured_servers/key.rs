//! Keys of requests: two requests with an equal key are the same operation. A key consists of the
//! target, the operation, and the file, object, name or range.
//!
//! A request has several keys, the narrowest first. A captured exchange also has keys from its
//! reply: our client may request by FID a file that the captured client opened or looked up by
//! name.

use capture::trace::Request;
use wire::format::Rqf;
use wire::{
    DISP_LOOKUP_NEG, DISP_OPEN_CREATE, LDLM_EXTENT, LDLM_FL_HAS_INTENT, LdlmReply, LdlmRequest, LlogdBody,
    LuSeqRange, MDS_OPEN_CREAT, MdtBody, MdtRecCreate, MdtRecReint, MdtRecSetattr, Message, Nid,
    NiobufRemote, OBD_MD_FLAGSTATFS, OST_IO_PORTAL, OST_REQUEST_PORTAL, OstBody, PtlrpcBody, WireStruct,
};

/// The beginning of keys that are used only if no exchange has another key of a request: the
/// creation of a name answers its lookup.
const CREATED: &str = "created";

/// Whether a key is used only if no exchange has another key of the request.
pub fn is_last_resort(key: &str) -> bool {
    key.starts_with(&format!("MDT {CREATED} "))
}

/// The lock request of an enqueue, a cancellation or a callback.
pub fn lock_request(msg: &Message) -> Option<LdlmRequest> {
    let mut buf = msg.buf(1).to_vec();
    buf.resize(buf.len().max(LdlmRequest::SIZE), 0);
    LdlmRequest::from_bytes(&buf).ok()
}

/// The target of a request on an unknown connection. The portal gives the kind of the target, and
/// each server has one target of a kind.
pub fn target_by_portal(request: &Request) -> String {
    let index = u32::from(request.server == "10.88.0.12@tcp".parse::<Nid>().unwrap());
    match request.portal {
        wire::MGS_REQUEST_PORTAL => "MGS".to_owned(),
        OST_REQUEST_PORTAL | OST_IO_PORTAL | wire::OST_CREATE_PORTAL => format!("testfs-OST{index:04x}_UUID"),
        _ => format!("testfs-MDT{index:04x}_UUID"),
    }
}

/// The keys of a request, the narrowest first.
pub fn keys(
    format: &Rqf,
    target: &str,
    (body, msg): (&PtlrpcBody, &Message),
    reply: Option<&Message>,
) -> Vec<String> {
    let keys = match format.name {
        "RQF_LDLM_ENQUEUE" => lock_keys(msg),
        "RQF_LDLM_CANCEL" => cancel_keys(msg),
        "RQF_LDLM_INTENT_OPEN" => open_keys(msg, reply),
        "RQF_LDLM_INTENT_GETATTR" => getattr_keys(msg, reply),
        "RQF_LDLM_INTENT_GETXATTR" | "RQF_MDS_GETXATTR" | "RQF_MDS_GETATTR" => file_keys(format, msg),
        "RQF_LDLM_INTENT_LAYOUT" => lock_request(msg).map_or(Vec::new(), |request| {
            vec![format!("layout {}", request.lock_desc.l_resource.lr_name)]
        }),
        "RQF_MDS_CLOSE" | "RQF_MDS_CLOSE_INTENT" => close_keys(msg),
        "RQF_MDS_READPAGE" => readpage_keys(msg),
        "RQF_OST_BRW_READ" | "RQF_OST_BRW_WRITE" => transfer_keys(format, msg),
        name if name.starts_with("RQF_MDS_REINT") => reint_keys(format, msg),
        _ if format.request.contains(&wire::format::Rmf::OstBody) => object_keys(format, msg),
        _ if (wire::LLOG_FIRST_OPC..wire::LLOG_LAST_OPC).contains(&body.pb_opc) => log_keys(format, msg),
        "RQF_MDS_STATFS" | "RQF_MDS_STATFS_NEW" => {
            let sum = msg.get::<MdtBody>(1).unwrap_or_default().mbo_valid & OBD_MD_FLAGSTATFS;
            vec![format!("statfs {sum:#x}")]
        }
        "RQF_FLD_QUERY" => {
            let seq = msg.get::<LuSeqRange>(2).map_or(0, |range| range.lsr_start);
            vec![format!("fld {seq:#x}")]
        }
        _ => name_keys(format, msg),
    };
    // The FID in these requests already determines the MDT, so the key omits the MDT's name.
    let fid_determines_mdt =
        format.name.starts_with("RQF_MDS_REINT") || format.name.starts_with("RQF_LDLM_INTENT");
    let target = if fid_determines_mdt { "MDT" } else { target };
    keys.into_iter().map(|k| format!("{target} {k}")).collect()
}

/// The keys of a request for an extent lock, an flock, or a lock on a configuration log.
fn lock_keys(msg: &Message) -> Vec<String> {
    let Some(request) = lock_request(msg) else {
        return Vec::new();
    };
    let (desc, glimpse) = (
        request.lock_desc,
        u64::from(request.lock_flags) & LDLM_FL_HAS_INTENT != 0,
    );
    let res = desc.l_resource.lr_name;
    let kind = if glimpse && desc.l_resource.lr_type == LDLM_EXTENT {
        "glimpse"
    } else {
        "lock"
    };
    let (mode, range) = (desc.l_req_mode, desc.l_policy_data.0);
    vec![
        format!("{kind} {res} {mode:#x} {:x}-{:x}", range[0], range[1]),
        format!("{kind} {res} {mode:#x}"),
    ]
}

/// The key of a cancellation: the handles of the locks.
fn cancel_keys(msg: &Message) -> Vec<String> {
    let mut handles = LdlmRequest::handles(msg.buf(1)).unwrap_or_default();
    handles.sort_unstable();
    vec![format!("cancel {handles:x?}")]
}

/// The FID of the file that an open or lookup found.
fn reply_fid(reply: Option<&Message>) -> Option<String> {
    let rep = reply?.get::<LdlmReply>(1).ok()?;
    let body = reply?.get::<MdtBody>(2).ok()?;
    (rep.lock_policy_res1 & DISP_LOOKUP_NEG == 0 && rep.lock_policy_res2 == 0 && !body.mbo_fid1.is_zero())
        .then(|| body.mbo_fid1.to_string())
}

fn open_keys(msg: &Message, reply: Option<&Message>) -> Vec<String> {
    let Ok(rec) = msg.get::<MdtRecCreate>(3) else {
        return Vec::new();
    };
    let name = String::from_utf8_lossy(msg.name(6)).into_owned();
    let mode = rec.cr_flags_l & 0o3;
    let creates = u64::from(rec.cr_flags_l) & MDS_OPEN_CREAT != 0;
    let mut keys = Vec::new();
    if !name.is_empty() {
        keys.push(format!("open {}/{name} {creates}", rec.cr_fid1));
    } else if reply.is_none() {
        keys.push(format!("open {} {mode}", rec.cr_fid2));
        keys.push(format!("open {}", rec.cr_fid2));
    }
    if creates
        && reply
            .and_then(|r| r.get::<LdlmReply>(1).ok())
            .is_some_and(|rep| rep.lock_policy_res2 == 0 && rep.lock_policy_res1 & DISP_OPEN_CREATE != 0)
    {
        keys.push(format!("{CREATED} {}/{name}", rec.cr_fid1));
    }
    if let Some(fid) = reply_fid(reply) {
        // A getattr may use this reply too: it would have returned the same attributes.
        keys.push(format!("opened {}/{name}", rec.cr_fid1));
        keys.push(format!("opened {fid}"));
        if !creates {
            keys.push(format!("open {fid} {mode}"));
            keys.push(format!("open {fid}"));
        }
    }
    keys
}

fn getattr_keys(msg: &Message, reply: Option<&Message>) -> Vec<String> {
    let Ok(body) = msg.get::<MdtBody>(3) else {
        return Vec::new();
    };
    let name = String::from_utf8_lossy(msg.name(5)).into_owned();
    let mut keys = Vec::new();
    if name.is_empty() {
        // The request has the file's FID only, or the directory's and then the file's.
        let fids = [body.mbo_fid2, body.mbo_fid1];
        let fid = fids.into_iter().find(|f| !f.is_zero()).unwrap_or_default();
        keys.push(format!("attr {fid}"));
        keys.push(format!("opened {fid}"));
    } else {
        keys.push(format!("attr {}/{name}", body.mbo_fid1));
        keys.extend(reply_fid(reply).map(|fid| format!("attr {fid}")));
        keys.push(format!("opened {}/{name}", body.mbo_fid1));
        keys.push(format!("{CREATED} {}/{name}", body.mbo_fid1));
    }
    if reply.is_some() {
        keys.retain(|k| k.starts_with("attr"));
    }
    keys
}

fn file_keys(format: &Rqf, msg: &Message) -> Vec<String> {
    let index = format.request_index(wire::format::Rmf::MdtBody).unwrap_or(1);
    let body = msg.get::<MdtBody>(index).unwrap_or_default();
    let name = format.request_index(wire::format::Rmf::Name);
    let name = name.map_or(Default::default(), |i| {
        String::from_utf8_lossy(msg.name(i)).into_owned()
    });
    vec![format!("{} {} {name}", format.name, body.mbo_fid1)]
}

fn close_keys(msg: &Message) -> Vec<String> {
    let handle = msg.get::<wire::MdtIoepoch>(1).unwrap_or_default();
    let fid = msg.get::<MdtRecSetattr>(2).unwrap_or_default().sa_fid;
    vec![
        format!("close {:#x}", handle.mio_open_handle.cookie),
        format!("close {fid}"),
    ]
}

fn readpage_keys(msg: &Message) -> Vec<String> {
    let body = msg.get::<MdtBody>(1).unwrap_or_default();
    vec![
        format!("readpage {} {:#x}", body.mbo_fid1, body.mbo_size),
        format!("readpage {}", body.mbo_fid1),
    ]
}

fn object_keys(format: &Rqf, msg: &Message) -> Vec<String> {
    let oa = msg.get::<OstBody>(1).unwrap_or_default().oa;
    vec![
        format!("{} {} {:x}-{:x}", format.name, oa.o_oi, oa.o_size, oa.o_blocks),
        format!("{} {}", format.name, oa.o_oi),
    ]
}

/// The ranges of a read or write.
pub fn ranges(msg: &Message) -> Vec<std::ops::Range<u64>> {
    let niobufs = msg.buf(3).chunks_exact(NiobufRemote::SIZE);
    let niobufs = niobufs.filter_map(|n| NiobufRemote::from_bytes(n).ok());
    niobufs
        .map(|n| n.rnb_offset..n.rnb_offset + u64::from(n.rnb_len))
        .collect()
}

fn transfer_keys(format: &Rqf, msg: &Message) -> Vec<String> {
    let oa = msg.get::<OstBody>(1).unwrap_or_default().oa;
    let ranges = ranges(msg);
    let (from, to) = (
        ranges.first().map_or(0, |range| range.start),
        ranges.last().map_or(0, |range| range.end),
    );
    let mut keys = vec![
        format!("{} {} {from}-{to}", format.name, oa.o_oi),
        format!("{} {} {from}", format.name, oa.o_oi),
    ];
    if format.name == "RQF_OST_BRW_READ" {
        keys.push(format!("{} {}", format.name, oa.o_oi));
    }
    keys
}

/// The keys of a modification: the operation, its directory or file, and all names.
fn reint_keys(format: &Rqf, msg: &Message) -> Vec<String> {
    let rec = msg.get::<MdtRecReint>(1).unwrap_or_default();
    let names: Vec<_> = format
        .request
        .iter()
        .zip(&msg.bufs)
        .filter(|(rmf, _)| matches!(rmf, wire::format::Rmf::Name | wire::format::Rmf::Symtgt))
        .map(|(_, buf)| String::from_utf8_lossy(wire::before_nul(buf)).into_owned())
        .collect();
    let names = names.join(" ");
    let broad = format!("{} {} {names}", operation_name(format), rec.rr_fid1);
    match rec.rr_opcode {
        wire::REINT_SETATTR => {
            let valid = msg.get::<MdtRecSetattr>(1).unwrap_or_default().sa_valid;
            let attrs =
                valid & (wire::MDS_ATTR_MODE | wire::MDS_ATTR_UID | wire::MDS_ATTR_GID | wire::MDS_ATTR_SIZE);
            vec![format!("{broad}{attrs:#x}"), broad]
        }
        wire::REINT_LINK => vec![format!("{broad} {}", rec.rr_fid2), broad],
        _ => vec![broad],
    }
}

/// The name of the operation: the same for all kinds of creation.
fn operation_name(format: &Rqf) -> &str {
    match format.name {
        "RQF_MDS_REINT_CREATE_ACL" | "RQF_MDS_REINT_CREATE_SLAVE" | "RQF_MDS_REINT_CREATE_SYM" => {
            "RQF_MDS_REINT_CREATE"
        }
        other => other,
    }
}

fn log_keys(format: &Rqf, msg: &Message) -> Vec<String> {
    let body = msg.get::<LlogdBody>(1).unwrap_or_default();
    let name = format.request_index(wire::format::Rmf::Name);
    let name = name.map_or(Default::default(), |i| {
        String::from_utf8_lossy(msg.name(i)).into_owned()
    });
    vec![
        format!(
            "{} {} {name} {}",
            format.name, body.lgd_logid.lgl_oi, body.lgd_index
        ),
        format!("{} {} {name}", format.name, body.lgd_logid.lgl_oi),
    ]
}

/// The key of any other request: its format, and its target UUID, name or info key.
fn name_keys(format: &Rqf, msg: &Message) -> Vec<String> {
    let mut key = format.name.to_owned();
    let texts = format.request.iter().zip(&msg.bufs).skip(1);
    for (rmf, buf) in texts {
        use wire::format::Rmf::{GetinfoKey, Name, SetinfoKey, Tgtuuid};
        if matches!(rmf, GetinfoKey | Name | SetinfoKey | Tgtuuid) {
            key += " ";
            key += &String::from_utf8_lossy(wire::before_nul(buf));
        }
    }
    vec![key.trim_end().to_owned()]
}
