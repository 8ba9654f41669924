//! Describes the buffers of a message by named facts.

use super::line::{Facts, status_text};
use super::names::{flags, lock_mode, value_or_number};
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
    ObdQuotactl, ObdStatfs, Obdo, OstLvb, WireError, WireStruct, before_nul, file_mode,
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
        Rmf::ConnectData => add_connect_data(&ObdConnectData::from_bytes(buf)?, facts),
        Rmf::DlmReq => add_lock_request(buf, opcode, facts)?,
        Rmf::DlmRep => add_lock_reply(&LdlmReply::from_bytes(buf)?, facts),
        Rmf::LdlmIntent => add_intent(LdlmIntent::from_bytes(buf)?.opc, facts),
        Rmf::LayoutIntent => {
            let intent = LayoutIntent::from_bytes(buf)?;
            facts.add("layout", value_or_number("LAYOUT_INTENT_", intent.lai_opc.into()));
            facts.add("range", range(intent.lai_extent.e_start, intent.lai_extent.e_end));
        }
        Rmf::MdtBody if is_request => add_mdt_request(&MdtBody::from_bytes(buf)?, opcode, facts),
        Rmf::MdtBody => add_mdt_reply(&MdtBody::from_bytes(buf)?, facts),
        Rmf::RecReint => add_reint(buf, facts)?,
        Rmf::Name => facts.add("name", text(buf)),
        Rmf::Symtgt => facts.add("to_name", text(buf)),
        Rmf::MdtEpoch => {
            facts.add_nonzero(
                "handle",
                format!("{:#x}", MdtIoepoch::from_bytes(buf)?.mio_open_handle.cookie),
            );
        }
        Rmf::MdtMd | Rmf::DefaultMdtMd | Rmf::Eadata | Rmf::DlmLvb if LovLayout::is_layout(buf) => {
            facts.add("layout", layout(&LovLayout::parse(buf)?));
        }
        Rmf::MdtMd => match LmvLayout::parse(buf) {
            Ok(lmv) => facts.add("stripes", list(lmv.stripes.iter())),
            Err(_) => facts.add_nonzero("link", text(buf)),
        },
        Rmf::Eadata if (wire::LLOG_FIRST_OPC..wire::LLOG_LAST_OPC).contains(&opcode) => {
            add_log_block(buf, facts)?
        }
        Rmf::Eadata | Rmf::ShortIo => facts.add("data", format!("{} bytes", buf.len())),
        Rmf::DlmLvb if buf.len() >= OstLvb::SIZE => {
            let lvb = OstLvb::from_bytes(buf)?;
            facts.add("size", lvb.lvb_size);
            facts.add("blocks", lvb.lvb_blocks);
        }
        Rmf::OstBody => add_obdo(&Obdo::from_bytes(buf)?, opcode, is_request, facts),
        Rmf::ObdIoobj => {
            let objects = buf
                .as_chunks::<{ ObdIoobj::SIZE }>()
                .0
                .iter()
                .flat_map(|o| ObdIoobj::from_bytes(o))
                .map(|o| o.ioo_oid);
            facts.add("object", list(objects));
        }
        Rmf::NiobufRemote => add_niobufs(buf, facts),
        Rmf::Rcs => {
            let rcs = buf
                .as_chunks::<4>()
                .0
                .iter()
                .map(|w| i32::from_le_bytes(*w))
                .filter(|rc| *rc != 0);
            facts.add_nonzero("rcs", list(rcs.map(|rc| status_text(None, rc))));
        }
        Rmf::ObdStatfs => {
            let statfs = ObdStatfs::from_bytes(buf)?;
            facts.add("blocks", format!("{}/{}", statfs.os_bavail, statfs.os_blocks));
            facts.add("files", format!("{}/{}", statfs.os_ffree, statfs.os_files));
            facts.add_nonzero("state", flags(&["OS_STATFS_"], statfs.os_state.into()));
        }
        Rmf::SeqRange | Rmf::FldMdfld => {
            let sequences = LuSeqRange::from_bytes(buf)?;
            facts.add(
                "seq",
                format!(
                    "{:#x}-{:#x}:{}:{}",
                    sequences.lsr_start,
                    sequences.lsr_end,
                    sequences.lsr_index,
                    range_kind(sequences.lsr_flags)
                ),
            );
        }
        Rmf::SeqOpc => facts.add("op", value_or_number("SEQ_ALLOC_", first_u32(buf))),
        Rmf::FldOpc => facts.add("op", value_or_number("FLD_", first_u32(buf))),
        Rmf::LlogdBody => {
            let body = LlogdBody::from_bytes(buf)?;
            facts.add("log", body.lgd_logid.lgl_oi);
            facts.add_nonzero("index", body.lgd_index);
            facts.add_nonzero("offset", body.lgd_cur_offset);
        }
        Rmf::LlogLogHdr => {
            let header = LlogLogHdr::from_bytes(buf)?;
            facts.add("records", header.llh_count.saturating_sub(1));
            facts.add("last_index", header.last_index());
        }
        Rmf::MgsTargetInfo => {
            let info = MgsTargetInfo::from_bytes(buf)?;
            facts.add("server", info.mti_svname);
            facts.add("mti_flags", flags(&["LDD_F_"], info.mti_flags.into()));
            facts.add_nonzero("params", info.mti_params);
        }
        Rmf::MgsConfigBody => {
            let body = MgsConfigBody::from_bytes(buf)?;
            facts.add("config", body.mcb_name);
            facts.add("config_type", value_or_number("MGS_CFG_T_", body.mcb_type.into()));
            facts.add("offset", body.mcb_offset);
        }
        Rmf::MgsConfigRes => {
            let result = MgsConfigRes::from_bytes(buf)?;
            facts.add("offset", format!("{}/{}", result.mcr_offset, result.mcr_size));
        }
        Rmf::SetinfoKey | Rmf::GetinfoKey => facts.add("key", text(buf)),
        Rmf::Fid => facts.add("fid", Fid::from_bytes(buf)?),
        Rmf::ObdQuotactl if is_request => {
            let quota = ObdQuotactl::from_bytes(buf)?;
            facts.add("cmd", value_or_number("LUSTRE_Q_", quota.qc_cmd.into()));
            facts.add(
                "id",
                format!(
                    "{}:{}",
                    value_or_number("LQUOTA_TYPE_", quota.qc_type.into()),
                    quota.qc_id
                ),
            );
        }
        _ => {}
    }
    Ok(())
}

fn add_connect_data(data: &ObdConnectData, facts: &mut Facts) {
    facts.add("connect", flags(&["OBD_CONNECT_"], data.ocd_connect_flags));
    facts.add_nonzero("connect2", flags(&["OBD_CONNECT2_"], data.ocd_connect_flags2));
    let version = data.ocd_version;
    facts.add(
        "version",
        format!(
            "{}.{}.{}.{}",
            version >> 24,
            version >> 16 & 0xff,
            version >> 8 & 0xff,
            version & 0xff
        ),
    );
    facts.add_nonzero("grant", data.ocd_grant);
    facts.add_nonzero("brw_size", data.ocd_brw_size);
    facts.add_nonzero("instance", data.ocd_instance);
}

fn add_lock_request(buf: &[u8], opcode: u32, facts: &mut Facts) -> Result<(), WireError> {
    // A request may be shorter than the structure; the missing fields count as 0.
    let mut padded = buf.to_vec();
    padded.resize(buf.len().max(LdlmRequest::SIZE), 0);
    let request = LdlmRequest::from_bytes(&padded)?;
    let handles = LdlmRequest::handles(buf).unwrap_or_default();
    match opcode {
        wire::LDLM_ENQUEUE => {
            add_lock_desc(&request.lock_desc, facts);
            facts.add("cookie", format!("{:#x}", request.lock_handle[0]));
            facts.add_nonzero("cancels", list(handles.iter().skip(1).map(|h| format!("{h:#x}"))));
        }
        wire::LDLM_BL_CALLBACK | wire::LDLM_CP_CALLBACK | wire::LDLM_GL_CALLBACK => {
            add_lock_desc(&request.lock_desc, facts);
            facts.add("cookie", format!("{:#x}", request.lock_handle[0]));
            facts.add("handle", format!("{:#x}", request.lock_handle[1]));
        }
        wire::LDLM_CONVERT => {
            facts.add(
                "keep",
                flags(&["MDS_INODELOCK_"], request.lock_desc.l_policy_data.bits()),
            );
            facts.add("handle", format!("{:#x}", request.lock_handle[0]));
        }
        _ if request.lock_count > 0 => facts.add("cancels", list(handles.iter().map(|h| format!("{h:#x}")))),
        _ => {}
    }
    facts.add_nonzero("lock_flags", flags(&["LDLM_FL_"], request.lock_flags.into()));
    Ok(())
}

fn add_lock_reply(reply: &LdlmReply, facts: &mut Facts) {
    if reply.lock_handle.cookie != 0 {
        add_lock_desc(&reply.lock_desc, facts);
        facts.add("handle", format!("{:#x}", reply.lock_handle.cookie));
    }
    facts.add_nonzero("lock_flags", flags(&["LDLM_FL_"], reply.lock_flags.into()));
    facts.add_nonzero("disp", flags(&["DISP_"], reply.lock_policy_res1));
    if reply.intent_status() != 0 {
        facts.add("intent_status", status_text(None, reply.intent_status()));
    }
}

/// Adds the facts of a lock: its resource; its type, mode and policy; and its try bits, if any.
fn add_lock_desc(desc: &LdlmLockDesc, facts: &mut Facts) {
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

fn add_intent(opc: u64, facts: &mut Facts) {
    facts.add("intent", flags(&["IT_"], opc));
}

fn add_mdt_request(body: &MdtBody, opcode: u32, facts: &mut Facts) {
    add_fid("fid", body.mbo_fid1, facts);
    add_fid("child", body.mbo_fid2, facts);
    if opcode == wire::MDS_READPAGE {
        facts.add("hash", format!("{:#x}", body.mbo_size));
        facts.add("bytes", body.mbo_nlink);
    }
}

fn add_mdt_reply(body: &MdtBody, facts: &mut Facts) {
    let valid = |bit| body.mbo_valid & bit != 0;
    add_fid("fid", body.mbo_fid1, facts);
    if valid(wire::OBD_MD_FLMODE) {
        facts.add("mode", file_mode(body.mbo_mode));
        facts.add("owner", format!("{}:{}", body.mbo_uid, body.mbo_gid));
    }
    if valid(wire::OBD_MD_FLSIZE) || valid(wire::OBD_MD_FLLAZYSIZE) {
        facts.add("size", body.mbo_size);
    }
    if valid(wire::OBD_MD_FLNLINK) {
        facts.add("nlink", body.mbo_nlink);
    }
    facts.add_nonzero("open", format!("{:#x}", body.mbo_open_handle.cookie));
    if valid(wire::OBD_MD_FLXATTR) || valid(wire::OBD_MD_FLXATTRLS) || valid(wire::OBD_MD_FLEASIZE) {
        facts.add_nonzero("ea_size", body.mbo_eadatasize);
    }
}

fn add_reint(buf: &[u8], facts: &mut Facts) -> Result<(), WireError> {
    let any = MdtRecReint::from_bytes(buf)?;
    facts.add("op", value_or_number("REINT_", any.rr_opcode.into()));
    match any.rr_opcode {
        wire::REINT_SETATTR => {
            let record = MdtRecSetattr::from_bytes(buf)?;
            add_fid("fid", record.sa_fid, facts);
            facts.add_nonzero("set", flags(&["MDS_ATTR_"], record.sa_valid));
        }
        wire::REINT_CREATE | wire::REINT_OPEN => {
            let record = MdtRecCreate::from_bytes(buf)?;
            add_fid("parent", record.cr_fid1, facts);
            add_fid("child", record.cr_fid2, facts);
            facts.add("mode", file_mode(record.cr_mode));
            let open = u64::from(record.cr_flags_h) << 32 | u64::from(record.cr_flags_l);
            facts.add_nonzero("open_flags", flags(&["MDS_FMODE_", "MDS_OPEN_"], open));
        }
        wire::REINT_LINK => {
            let record = MdtRecLink::from_bytes(buf)?;
            add_fid("fid", record.lk_fid1, facts);
            add_fid("parent", record.lk_fid2, facts);
        }
        wire::REINT_UNLINK | wire::REINT_RMENTRY => {
            let record = MdtRecUnlink::from_bytes(buf)?;
            add_fid("parent", record.ul_fid1, facts);
            add_fid("child", record.ul_fid2, facts);
        }
        wire::REINT_RENAME | wire::REINT_MIGRATE => {
            let record = MdtRecRename::from_bytes(buf)?;
            add_fid("parent", record.rn_fid1, facts);
            add_fid("to_parent", record.rn_fid2, facts);
        }
        wire::REINT_SETXATTR => {
            let record = MdtRecSetxattr::from_bytes(buf)?;
            add_fid("fid", record.sx_fid, facts);
            facts.add_nonzero("valid", flags(&["OBD_MD_"], record.sx_valid));
        }
        _ => add_fid("fid", any.rr_fid1, facts),
    }
    Ok(())
}

fn add_obdo(obdo: &Obdo, opcode: u32, is_request: bool, facts: &mut Facts) {
    let valid = |bit| obdo.o_valid & bit != 0;
    if !matches!(opcode, wire::OST_READ | wire::OST_WRITE) {
        facts.add("object", obdo.o_oi);
    }
    match opcode {
        wire::OST_PUNCH | wire::OST_FALLOCATE | wire::OST_SYNC if is_request => {
            facts.add("range", range(obdo.o_size, obdo.o_blocks));
        }
        wire::OST_SEEK => facts.add("offset", obdo.o_size),
        _ if valid(wire::OBD_MD_FLSIZE) => facts.add("size", obdo.o_size),
        _ => {}
    }
    if valid(wire::OBD_MD_FLFLAGS) {
        let cksum = obdo.o_flags & wire::OBD_FL_CKSUM_ALL;
        facts.add_nonzero(
            "o_flags",
            flags(&["OBD_FL_"], (obdo.o_flags & !wire::OBD_FL_CKSUM_ALL).into()),
        );
        if valid(wire::OBD_MD_FLCKSUM) {
            facts.add(
                "cksum",
                format!(
                    "{}:{:08x}",
                    value_or_number("OBD_FL_CKSUM_", cksum.into()),
                    obdo.o_cksum()
                ),
            );
        }
    }
    if valid(wire::OBD_MD_FLGRANT) {
        facts.add("grant", obdo.o_grant);
    }
    if valid(wire::OBD_MD_FLFID) {
        add_fid("parent", obdo.parent_fid(), facts);
    }
}

fn add_niobufs(buf: &[u8], facts: &mut Facts) {
    let all: Vec<_> = buf
        .as_chunks::<{ NiobufRemote::SIZE }>()
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
        facts.add_nonzero("brw", flags(&["OBD_BRW_"], first.rnb_flags.into()));
    }
}

/// Adds the records in a block of a configuration log.
fn add_log_block(buf: &[u8], facts: &mut Facts) -> Result<(), WireError> {
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
pub(super) fn add_directory_pages(data: &Bytes, facts: &mut Facts) {
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

fn add_fid(name: &'static str, fid: Fid, facts: &mut Facts) {
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
fn first_u32(buf: &[u8]) -> u64 {
    buf.first_chunk().map_or(0, |w| u32::from_le_bytes(*w).into())
}
