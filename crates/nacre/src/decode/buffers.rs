//! Describes the buffers of a message by named facts.

use super::line::{Facts, status_text};
use super::names::{file_mode, flags, lock_mode, value_or_number};
use bytes::Bytes;
use wire::config::Config;
use wire::dirpage::DirPage;
use wire::format::Rmf;
use wire::llog_file::records;
use wire::striping::{LmvLayout, LovLayout, PlainLayout};
use wire::{
    Fid, LayoutIntent, LdlmIntent, LdlmLockDesc, LdlmReply, LdlmRequest, LlogLogHdr, LlogdBody, LuSeqRange,
    MdtBody, MdtIoepoch, MdtRecCreate, MdtRecLink, MdtRecReint, MdtRecRename, MdtRecSetattr, MdtRecSetxattr,
    MdtRecUnlink, MgsConfigBody, MgsConfigRes, MgsTargetInfo, NiobufRemote, ObdConnectData, ObdIoobj,
    ObdQuotactl, ObdStatfs, Obdo, OstLvb, WireError, WireStruct, before_nul,
};

/// Adds the facts of one buffer; for a buffer that cannot be decoded, the fact `unreadable`.
pub(super) fn describe(rmf: Rmf, buf: &[u8], opcode: u32, is_request: bool, facts: &mut Facts) {
    if let Err(e) = try_describe(rmf, buf, opcode, is_request, facts) {
        facts.add("unreadable", format!("{}: {e}", rmf.name()));
    }
}

fn try_describe(
    rmf: Rmf,
    buf: &[u8],
    opcode: u32,
    is_request: bool,
    facts: &mut Facts,
) -> Result<(), WireError> {
    match rmf {
        Rmf::Cluuid => facts.add("client", text(buf)),
        Rmf::ConnectData => connect_data(&ObdConnectData::from_bytes(buf)?, facts),
        Rmf::DlmReq => lock_request(buf, opcode, facts)?,
        Rmf::DlmRep => lock_reply(&LdlmReply::from_bytes(buf)?, facts),
        Rmf::LdlmIntent => intent(LdlmIntent::from_bytes(buf)?.opc, facts),
        Rmf::LayoutIntent => {
            let intent = LayoutIntent::from_bytes(buf)?;
            facts.add("layout", value_or_number("LAYOUT_INTENT_", intent.lai_opc.into()));
            facts.add("range", range(intent.lai_extent.e_start, intent.lai_extent.e_end));
        }
        Rmf::MdtBody if is_request => mdt_request(&MdtBody::from_bytes(buf)?, opcode, facts),
        Rmf::MdtBody => mdt_reply(&MdtBody::from_bytes(buf)?, facts),
        Rmf::RecReint => reint(buf, facts)?,
        Rmf::Name => facts.add("name", text(buf)),
        Rmf::Symtgt => facts.add("to_name", text(buf)),
        Rmf::MdtEpoch => {
            facts.add_some(
                "handle",
                format!("{:#x}", MdtIoepoch::from_bytes(buf)?.mio_open_handle.cookie),
            );
        }
        Rmf::MdtMd | Rmf::DefaultMdtMd | Rmf::Eadata | Rmf::DlmLvb if LovLayout::is_layout(buf) => {
            facts.add("layout", layout(&LovLayout::parse(buf)?));
        }
        Rmf::MdtMd => match LmvLayout::parse(buf) {
            Ok(lmv) => facts.add("stripes", list(lmv.stripes.iter())),
            Err(_) => facts.add_some("link", text(buf)),
        },
        Rmf::Eadata if (wire::LLOG_FIRST_OPC..wire::LLOG_LAST_OPC).contains(&opcode) => {
            log_block(buf, facts)?
        }
        Rmf::Eadata | Rmf::ShortIo => facts.add("data", format!("{} bytes", buf.len())),
        Rmf::DlmLvb if buf.len() >= OstLvb::SIZE => {
            let lvb = OstLvb::from_bytes(buf)?;
            facts.add("size", lvb.lvb_size);
            facts.add("blocks", lvb.lvb_blocks);
        }
        Rmf::OstBody => obdo(&Obdo::from_bytes(buf)?, opcode, is_request, facts),
        Rmf::ObdIoobj => {
            let objects = buf
                .as_chunks::<24>()
                .0
                .iter()
                .flat_map(|o| ObdIoobj::from_bytes(o))
                .map(|o| o.ioo_oid);
            facts.add("object", list(objects));
        }
        Rmf::NiobufRemote => niobufs(buf, facts),
        Rmf::Rcs => {
            let rcs = buf
                .as_chunks::<4>()
                .0
                .iter()
                .map(|w| i32::from_le_bytes(*w))
                .filter(|rc| *rc != 0);
            facts.add_some("rcs", list(rcs.map(|rc| status_text(None, rc))));
        }
        Rmf::ObdStatfs => {
            let s = ObdStatfs::from_bytes(buf)?;
            facts.add("blocks", format!("{}/{}", s.os_bavail, s.os_blocks));
            facts.add("files", format!("{}/{}", s.os_ffree, s.os_files));
            facts.add_some("state", flags(&["OS_STATFS_"], s.os_state.into()));
        }
        Rmf::SeqRange | Rmf::FldMdfld => {
            let r = LuSeqRange::from_bytes(buf)?;
            facts.add(
                "seq",
                format!(
                    "{:#x}-{:#x}:{}:{}",
                    r.lsr_start,
                    r.lsr_end,
                    r.lsr_index,
                    range_kind(r.lsr_flags)
                ),
            );
        }
        Rmf::SeqOpc => facts.add("op", value_or_number("SEQ_ALLOC_", word(buf))),
        Rmf::FldOpc => facts.add("op", value_or_number("FLD_", word(buf))),
        Rmf::LlogdBody => {
            let b = LlogdBody::from_bytes(buf)?;
            facts.add("log", b.lgd_logid.lgl_oi);
            facts.add_some("index", b.lgd_index);
            facts.add_some("offset", b.lgd_cur_offset);
        }
        Rmf::LlogLogHdr => {
            let h = LlogLogHdr::from_bytes(buf)?;
            facts.add("records", h.llh_count.saturating_sub(1));
            facts.add("last_index", h.last_index());
        }
        Rmf::MgsTargetInfo => {
            let i = MgsTargetInfo::from_bytes(buf)?;
            facts.add("server", i.mti_svname);
            facts.add("mti_flags", flags(&["LDD_F_"], i.mti_flags.into()));
            facts.add_some("params", i.mti_params);
        }
        Rmf::MgsConfigBody => {
            let b = MgsConfigBody::from_bytes(buf)?;
            facts.add("config", b.mcb_name);
            facts.add("config_type", value_or_number("MGS_CFG_T_", b.mcb_type.into()));
            facts.add("offset", b.mcb_offset);
        }
        Rmf::MgsConfigRes => {
            let r = MgsConfigRes::from_bytes(buf)?;
            facts.add("offset", format!("{}/{}", r.mcr_offset, r.mcr_size));
        }
        Rmf::SetinfoKey | Rmf::GetinfoKey => facts.add("key", text(buf)),
        Rmf::Fid => facts.add("fid", Fid::from_bytes(buf)?),
        Rmf::ObdQuotactl if is_request => {
            let q = ObdQuotactl::from_bytes(buf)?;
            facts.add("cmd", value_or_number("LUSTRE_Q_", q.qc_cmd.into()));
            facts.add(
                "id",
                format!(
                    "{}:{}",
                    value_or_number("LQUOTA_TYPE_", q.qc_type.into()),
                    q.qc_id
                ),
            );
        }
        _ => {}
    }
    Ok(())
}

fn connect_data(d: &ObdConnectData, facts: &mut Facts) {
    facts.add("connect", flags(&["OBD_CONNECT_"], d.ocd_connect_flags));
    facts.add_some("connect2", flags(&["OBD_CONNECT2_"], d.ocd_connect_flags2));
    let v = d.ocd_version;
    facts.add(
        "version",
        format!("{}.{}.{}.{}", v >> 24, v >> 16 & 0xff, v >> 8 & 0xff, v & 0xff),
    );
    facts.add_some("grant", d.ocd_grant);
    facts.add_some("brw_size", d.ocd_brw_size);
    facts.add_some("instance", d.ocd_instance);
}

fn lock_request(buf: &[u8], opcode: u32, facts: &mut Facts) -> Result<(), WireError> {
    // A request may be shorter than the structure; the missing fields count as 0.
    let mut padded = buf.to_vec();
    padded.resize(buf.len().max(LdlmRequest::SIZE), 0);
    let req = LdlmRequest::from_bytes(&padded)?;
    let handles = LdlmRequest::handles(buf).unwrap_or_default();
    match opcode {
        wire::LDLM_ENQUEUE => {
            lock_desc(&req.lock_desc, facts);
            facts.add("cookie", format!("{:#x}", req.lock_handle[0]));
            facts.add_some("cancels", list(handles.iter().skip(1).map(|h| format!("{h:#x}"))));
        }
        wire::LDLM_BL_CALLBACK | wire::LDLM_CP_CALLBACK | wire::LDLM_GL_CALLBACK => {
            lock_desc(&req.lock_desc, facts);
            facts.add("cookie", format!("{:#x}", req.lock_handle[0]));
            facts.add("handle", format!("{:#x}", req.lock_handle[1]));
        }
        wire::LDLM_CONVERT => {
            facts.add(
                "keep",
                flags(&["MDS_INODELOCK_"], req.lock_desc.l_policy_data.bits()),
            );
            facts.add("handle", format!("{:#x}", req.lock_handle[0]));
        }
        _ if req.lock_count > 0 => facts.add("cancels", list(handles.iter().map(|h| format!("{h:#x}")))),
        _ => {}
    }
    facts.add_some("lock_flags", flags(&["LDLM_FL_"], req.lock_flags.into()));
    Ok(())
}

fn lock_reply(rep: &LdlmReply, facts: &mut Facts) {
    if rep.lock_handle.cookie != 0 {
        lock_desc(&rep.lock_desc, facts);
        facts.add("handle", format!("{:#x}", rep.lock_handle.cookie));
    }
    facts.add_some("lock_flags", flags(&["LDLM_FL_"], rep.lock_flags.into()));
    facts.add_some("disp", flags(&["DISP_"], rep.lock_policy_res1));
    if rep.intent_status() != 0 {
        facts.add("intent_status", status_text(None, rep.intent_status()));
    }
}

/// Adds the facts of a lock: its resource; its type, mode and policy; and its try bits, if any.
fn lock_desc(desc: &LdlmLockDesc, facts: &mut Facts) {
    let (resource, policy) = (&desc.l_resource, &desc.l_policy_data);
    match resource.lr_type {
        // The resource of a plain lock is the name of a configuration log and its type.
        wire::LDLM_PLAIN => {
            let name = resource.lr_name.name[0].to_le_bytes();
            facts.add("res", format!("{}:{}", text(&name), resource.lr_name.name[1]));
        }
        _ => facts.add("res", resource.lr_name),
    }
    let mode = if desc.is_granted() && desc.l_granted_mode != desc.l_req_mode {
        format!(
            "{}>{}",
            lock_mode(desc.l_req_mode),
            lock_mode(desc.l_granted_mode)
        )
    } else {
        lock_mode(desc.l_req_mode).to_owned()
    };
    let policy_text = match resource.lr_type {
        wire::LDLM_EXTENT => range(policy.start(), policy.end()),
        wire::LDLM_IBITS => flags(&["MDS_INODELOCK_"], policy.bits()),
        wire::LDLM_FLOCK => format!("{}:pid{}", range(policy.start(), policy.end()), policy.pid()),
        _ => String::new(),
    };
    let kind = value_or_number("LDLM_", resource.lr_type.into());
    facts.add(
        "lock",
        format!("{kind}:{mode}:{policy_text}").trim_end_matches(':'),
    );
    if resource.lr_type == wire::LDLM_IBITS && policy.try_bits() != 0 {
        facts.add("try_bits", flags(&["MDS_INODELOCK_"], policy.try_bits()));
    }
}

fn intent(opc: u64, facts: &mut Facts) {
    facts.add("intent", flags(&["IT_"], opc));
}

fn mdt_request(b: &MdtBody, opcode: u32, facts: &mut Facts) {
    fid("fid", b.mbo_fid1, facts);
    fid("child", b.mbo_fid2, facts);
    if opcode == wire::MDS_READPAGE {
        facts.add("hash", format!("{:#x}", b.mbo_size));
        facts.add("bytes", b.mbo_nlink);
    }
}

fn mdt_reply(b: &MdtBody, facts: &mut Facts) {
    let valid = |bit| b.mbo_valid & bit != 0;
    fid("fid", b.mbo_fid1, facts);
    if valid(wire::OBD_MD_FLMODE) {
        facts.add("mode", file_mode(b.mbo_mode));
        facts.add("owner", format!("{}:{}", b.mbo_uid, b.mbo_gid));
    }
    if valid(wire::OBD_MD_FLSIZE) || valid(wire::OBD_MD_FLLAZYSIZE) {
        facts.add("size", b.mbo_size);
    }
    if valid(wire::OBD_MD_FLNLINK) {
        facts.add("nlink", b.mbo_nlink);
    }
    facts.add_some("open", format!("{:#x}", b.mbo_open_handle.cookie));
    if valid(wire::OBD_MD_FLXATTR) || valid(wire::OBD_MD_FLXATTRLS) || valid(wire::OBD_MD_FLEASIZE) {
        facts.add_some("ea_size", b.mbo_eadatasize);
    }
}

fn reint(buf: &[u8], facts: &mut Facts) -> Result<(), WireError> {
    let any = MdtRecReint::from_bytes(buf)?;
    facts.add("op", value_or_number("REINT_", any.rr_opcode.into()));
    match any.rr_opcode {
        wire::REINT_SETATTR => {
            let r = MdtRecSetattr::from_bytes(buf)?;
            fid("fid", r.sa_fid, facts);
            facts.add_some("set", flags(&["MDS_ATTR_"], r.sa_valid));
        }
        wire::REINT_CREATE | wire::REINT_OPEN => {
            let r = MdtRecCreate::from_bytes(buf)?;
            fid("parent", r.cr_fid1, facts);
            fid("child", r.cr_fid2, facts);
            facts.add("mode", file_mode(r.cr_mode));
            let open = u64::from(r.cr_flags_h) << 32 | u64::from(r.cr_flags_l);
            facts.add_some("open_flags", flags(&["MDS_FMODE_", "MDS_OPEN_"], open));
        }
        wire::REINT_LINK => {
            let r = MdtRecLink::from_bytes(buf)?;
            fid("fid", r.lk_fid1, facts);
            fid("parent", r.lk_fid2, facts);
        }
        wire::REINT_UNLINK | wire::REINT_RMENTRY => {
            let r = MdtRecUnlink::from_bytes(buf)?;
            fid("parent", r.ul_fid1, facts);
            fid("child", r.ul_fid2, facts);
        }
        wire::REINT_RENAME | wire::REINT_MIGRATE => {
            let r = MdtRecRename::from_bytes(buf)?;
            fid("parent", r.rn_fid1, facts);
            fid("to_parent", r.rn_fid2, facts);
        }
        wire::REINT_SETXATTR => {
            let r = MdtRecSetxattr::from_bytes(buf)?;
            fid("fid", r.sx_fid, facts);
            facts.add_some("valid", flags(&["OBD_MD_"], r.sx_valid));
        }
        _ => fid("fid", any.rr_fid1, facts),
    }
    Ok(())
}

fn obdo(o: &Obdo, opcode: u32, is_request: bool, facts: &mut Facts) {
    let valid = |bit| o.o_valid & bit != 0;
    if !matches!(opcode, wire::OST_READ | wire::OST_WRITE) {
        facts.add("object", o.o_oi);
    }
    match opcode {
        wire::OST_PUNCH | wire::OST_FALLOCATE | wire::OST_SYNC if is_request => {
            facts.add("range", range(o.o_size, o.o_blocks));
        }
        wire::OST_SEEK => facts.add("offset", o.o_size),
        _ if valid(wire::OBD_MD_FLSIZE) => facts.add("size", o.o_size),
        _ => {}
    }
    if valid(wire::OBD_MD_FLFLAGS) {
        let cksum = o.o_flags & wire::OBD_FL_CKSUM_ALL;
        facts.add_some(
            "o_flags",
            flags(&["OBD_FL_"], (o.o_flags & !wire::OBD_FL_CKSUM_ALL).into()),
        );
        if valid(wire::OBD_MD_FLCKSUM) {
            facts.add(
                "cksum",
                format!(
                    "{}:{:08x}",
                    value_or_number("OBD_FL_CKSUM_", cksum.into()),
                    o.o_cksum()
                ),
            );
        }
    }
    if valid(wire::OBD_MD_FLGRANT) {
        facts.add("grant", o.o_grant);
    }
    if valid(wire::OBD_MD_FLFID) {
        fid("parent", o.parent_fid(), facts);
    }
}

fn niobufs(buf: &[u8], facts: &mut Facts) {
    let all: Vec<_> = buf
        .as_chunks::<16>()
        .0
        .iter()
        .flat_map(|b| NiobufRemote::from_bytes(b))
        .collect();
    let byte_range = |b: &NiobufRemote| {
        range(
            b.rnb_offset,
            b.rnb_offset.wrapping_add(b.rnb_len.into()).wrapping_sub(1),
        )
    };
    facts.add("range", list(all.iter().map(byte_range)));
    if let Some(first) = all.first() {
        facts.add_some("brw", flags(&["OBD_BRW_"], first.rnb_flags.into()));
    }
}

/// Adds the records in a block of a configuration log.
fn log_block(buf: &[u8], facts: &mut Facts) -> Result<(), WireError> {
    let mut texts = Vec::new();
    for record in records(buf) {
        let record = record?;
        let text = match Config::parse(record.data) {
            Ok(config) => config_text(&config),
            Err(_) if record.is_pad() => "PAD".to_owned(),
            Err(_) => format!("{:#x}", record.kind),
        };
        texts.push(format!("{}:{text}", record.index));
    }
    facts.add("records", list(texts.iter()));
    Ok(())
}

fn config_text(config: &Config) -> String {
    let command = value_or_number("LCFG_", config.command.into());
    if let Some(marker) = config.as_marker() {
        return format!(
            "{command}({},{},{})",
            flags(&["CM_"], marker.cm_flags.into()),
            marker.cm_tgtname,
            marker.cm_comment
        );
    }
    format!(
        "{command}({})",
        list((0..config.bufs.len()).map(|i| config.text(i)))
    )
}

/// Adds the facts of directory pages: their number, the number of entries, and the hash at which
/// the next page begins.
pub(super) fn directory_pages(data: &Bytes, facts: &mut Facts) {
    if data.is_empty() {
        return;
    }
    match DirPage::parse_all(data) {
        Ok(pages) => {
            facts.add("pages", pages.len());
            facts.add("entries", pages.iter().map(|p| p.entries.len()).sum::<usize>());
            if let Some(last) = pages.last() {
                facts.add("next_hash", format!("{:#x}", last.hash_end));
            }
        }
        Err(e) => facts.add("unreadable", e),
    }
}

fn layout(layout: &LovLayout) -> String {
    match layout {
        LovLayout::Plain(plain) => plain_layout(plain),
        LovLayout::Composite(composite) => {
            let parts = composite.components.iter().map(|(entry, plain)| {
                format!(
                    "{}:{}",
                    range(entry.lcme_extent.e_start, entry.lcme_extent.e_end),
                    plain_layout(plain)
                )
            });
            format!("composite({})", list(parts))
        }
        LovLayout::Foreign(head, value) => format!("foreign({:#x},{} bytes)", head.lfm_type, value.len()),
    }
}

fn plain_layout(plain: &PlainLayout) -> String {
    let objects = plain
        .objects
        .iter()
        .map(|o| format!("{}@ost{}", o.l_ost_oi, o.l_ost_idx));
    let count = plain.stripe_count as i16;
    format!("{}x{}({})", count, plain.stripe_size, list(objects))
}

fn fid(name: &'static str, fid: Fid, facts: &mut Facts) {
    if !fid.is_zero() {
        facts.add(name, fid);
    }
}

fn range(start: u64, end: u64) -> String {
    match end {
        u64::MAX => format!("[{start}-EOF]"),
        _ => format!("[{start}-{end}]"),
    }
}

/// The kind of targets that a range of sequences belongs to.
fn range_kind(kind: u32) -> &'static str {
    match kind {
        wire::LU_SEQ_RANGE_MDT => "mdt",
        wire::LU_SEQ_RANGE_OST => "ost",
        _ => "any",
    }
}

fn list<T: ToString>(items: impl Iterator<Item = T>) -> String {
    items.map(|i| i.to_string()).collect::<Vec<_>>().join(",")
}

fn text(buf: &[u8]) -> String {
    String::from_utf8_lossy(before_nul(buf)).into_owned()
}

/// The little-endian u32 at the beginning of a buffer; 0 in a shorter buffer.
fn word(buf: &[u8]) -> u64 {
    buf.first_chunk().map_or(0, |w| u32::from_le_bytes(*w).into())
}
