//! Properties of opcodes: portals, versions and scheduling (docs/protocol.md, "PtlRPC").

use crate::ImportKind;
use wire::{
    FLD_QUERY, FLD_READ, FLD_REQUEST_PORTAL, LDLM_BL_CALLBACK, LDLM_CANCEL, LDLM_CANCEL_REPLY_PORTAL,
    LDLM_CANCEL_REQUEST_PORTAL, LDLM_CB_REPLY_PORTAL, LDLM_CB_REQUEST_PORTAL, LDLM_CONVERT, LDLM_ENQUEUE,
    LDLM_SET_INFO, LLOG_FIRST_OPC, LLOG_LAST_OPC, LUSTRE_DLM_VERSION, LUSTRE_LOG_VERSION, LUSTRE_MDS_VERSION,
    LUSTRE_MGS_VERSION, LUSTRE_OBD_VERSION, LUSTRE_OST_VERSION, MDC_REPLY_PORTAL, MDS_BATCH, MDS_BULK_PORTAL,
    MDS_CLOSE, MDS_CONNECT, MDS_DISCONNECT, MDS_GETATTR, MDS_GETXATTR, MDS_IO_PORTAL, MDS_LAST_OPC,
    MDS_READPAGE, MDS_READPAGE_PORTAL, MDS_REQUEST_PORTAL, MGC_REPLY_PORTAL, MGS_BULK_PORTAL, MGS_CONNECT,
    MGS_DISCONNECT, MGS_FIRST_OPC, MGS_LAST_OPC, MGS_REQUEST_PORTAL, OBD_IDX_READ, OBD_PING,
    OSC_REPLY_PORTAL, OST_BULK_PORTAL, OST_CONNECT, OST_CREATE, OST_CREATE_PORTAL, OST_DESTROY,
    OST_DISCONNECT, OST_FALLOCATE, OST_IO_PORTAL, OST_LADVISE, OST_LAST_OPC, OST_PUNCH, OST_READ,
    OST_REQUEST_PORTAL, OST_STATFS, OST_WRITE, OUT_PORTAL, OUT_UPDATE, QUOTA_DQACQ, QUOTA_DQREL,
    SEQ_DATA_PORTAL, SEQ_METADATA_PORTAL, SEQ_QUERY,
};

/// Whether `opc` is a connect.
pub(crate) fn is_connect(opc: u32) -> bool {
    matches!(opc, OST_CONNECT | MDS_CONNECT | MGS_CONNECT)
}

/// Whether `opc` is a disconnect.
pub(crate) fn is_disconnect(opc: u32) -> bool {
    matches!(opc, OST_DISCONNECT | MDS_DISCONNECT | MGS_DISCONNECT)
}

/// Whether `opc` is handled before other requests, because it is a lock callback, releases a lock,
/// connects a client, or keeps a client connected.
pub(crate) fn is_high_priority(opc: u32) -> bool {
    opc == OBD_PING
        || is_connect(opc)
        || matches!(opc, LDLM_CANCEL | LDLM_CONVERT)
        || (LDLM_BL_CALLBACK..=LDLM_SET_INFO).contains(&opc)
}

/// Whether `opc` counts against `max_rpcs_in_flight`. These are requests that can fill a server's
/// queues; requests that release locks never count.
pub(crate) fn is_limited(opc: u32) -> bool {
    is_io(opc) || matches!(opc, LDLM_ENQUEUE | MDS_GETATTR | MDS_GETXATTR | MDS_BATCH)
}

/// Whether `opc` reads, writes or truncates file data. Such requests have their own slots, so that
/// requests that wait for locks cannot take the slots away from them.
pub(crate) fn is_io(opc: u32) -> bool {
    matches!(opc, OST_READ | OST_WRITE | OST_PUNCH)
}

/// The service version in the high half of `pb_version`.
pub(crate) fn version(opc: u32) -> u32 {
    match opc {
        _ if is_connect(opc) || is_disconnect(opc) => LUSTRE_OBD_VERSION,
        1..OST_LAST_OPC => LUSTRE_OST_VERSION,
        MDS_GETATTR..MDS_LAST_OPC => LUSTRE_MDS_VERSION,
        LDLM_ENQUEUE..=LDLM_SET_INFO => LUSTRE_DLM_VERSION,
        MGS_FIRST_OPC..MGS_LAST_OPC => LUSTRE_MGS_VERSION,
        LLOG_FIRST_OPC..LLOG_LAST_OPC => LUSTRE_LOG_VERSION,
        SEQ_QUERY | FLD_QUERY | FLD_READ | OUT_UPDATE | QUOTA_DQACQ | QUOTA_DQREL => LUSTRE_MDS_VERSION,
        _ => LUSTRE_OBD_VERSION,
    }
}

/// The connect opcode of a kind of import.
pub(crate) fn connect_opcode(kind: ImportKind) -> u32 {
    match kind {
        ImportKind::Mgc => MGS_CONNECT,
        ImportKind::Mdc | ImportKind::OspMdt | ImportKind::Lwp => MDS_CONNECT,
        ImportKind::Osc | ImportKind::Osp => OST_CONNECT,
    }
}

/// The disconnect opcode of a kind of import.
pub(crate) fn disconnect_opcode(kind: ImportKind) -> u32 {
    match kind {
        ImportKind::Mgc => MGS_DISCONNECT,
        ImportKind::Mdc | ImportKind::OspMdt | ImportKind::Lwp => MDS_DISCONNECT,
        ImportKind::Osc | ImportKind::Osp => OST_DISCONNECT,
    }
}

/// The portal of a request with this opcode over an import of this kind.
///
/// Requests between MDTs have a portal of their own, as in Lustre: clients' requests that wait for
/// another MDT then do not take the slots that the other MDT's requests need.
pub(crate) fn request_portal(opc: u32, kind: ImportKind) -> u32 {
    match opc {
        LDLM_CANCEL | LDLM_CONVERT => LDLM_CANCEL_REQUEST_PORTAL,
        LDLM_BL_CALLBACK..=LDLM_SET_INFO => LDLM_CB_REQUEST_PORTAL,
        SEQ_QUERY => match kind {
            ImportKind::Osc | ImportKind::Osp => SEQ_DATA_PORTAL,
            _ => SEQ_METADATA_PORTAL,
        },
        FLD_QUERY | FLD_READ => FLD_REQUEST_PORTAL,
        _ if kind == ImportKind::OspMdt => OUT_PORTAL,
        OST_READ | OST_WRITE | OST_PUNCH | OST_FALLOCATE => match kind {
            ImportKind::Mdc | ImportKind::Lwp => MDS_IO_PORTAL,
            _ => OST_IO_PORTAL,
        },
        OST_DESTROY | OST_LADVISE => OST_IO_PORTAL,
        OST_CREATE | OST_STATFS => OST_CREATE_PORTAL,
        MDS_GETATTR | MDS_CLOSE | MDS_READPAGE | MDS_GETXATTR | OBD_IDX_READ | QUOTA_DQACQ | QUOTA_DQREL => {
            MDS_READPAGE_PORTAL
        }
        OUT_UPDATE | MDS_BATCH => OUT_PORTAL,
        _ => match kind {
            ImportKind::Mgc => MGS_REQUEST_PORTAL,
            ImportKind::Mdc | ImportKind::OspMdt | ImportKind::Lwp => MDS_REQUEST_PORTAL,
            ImportKind::Osc | ImportKind::Osp => OST_REQUEST_PORTAL,
        },
    }
}

/// The portal of the reply to a request on `portal`.
pub(crate) fn reply_portal(portal: u32) -> u32 {
    match portal {
        MGS_REQUEST_PORTAL => MGC_REPLY_PORTAL,
        LDLM_CANCEL_REQUEST_PORTAL => LDLM_CANCEL_REPLY_PORTAL,
        LDLM_CB_REQUEST_PORTAL => LDLM_CB_REPLY_PORTAL,
        OST_REQUEST_PORTAL | OST_IO_PORTAL | OST_CREATE_PORTAL | OUT_PORTAL | SEQ_DATA_PORTAL => {
            OSC_REPLY_PORTAL
        }
        _ => MDC_REPLY_PORTAL,
    }
}

/// The portal of a request's bulk.
pub(crate) fn bulk_portal(opc: u32) -> u32 {
    match opc {
        OST_READ | OST_WRITE => OST_BULK_PORTAL,
        MGS_FIRST_OPC..MGS_LAST_OPC => MGS_BULK_PORTAL,
        _ => MDS_BULK_PORTAL,
    }
}

#[cfg(test)]
mod tests {
    use super::{is_high_priority, is_limited, reply_portal, request_portal, version};
    use crate::ImportKind;

    #[test]
    fn portals_and_versions_match_the_captures() {
        for (opc, kind, portals, family) in [
            (wire::LDLM_ENQUEUE, ImportKind::Mdc, (12, 10), 0x40000),
            (wire::LDLM_ENQUEUE, ImportKind::Osc, (28, 4), 0x40000),
            (wire::LDLM_ENQUEUE, ImportKind::Mgc, (26, 25), 0x40000),
            (wire::LDLM_CANCEL, ImportKind::Osc, (17, 18), 0x40000),
            (wire::LDLM_CONVERT, ImportKind::Mdc, (17, 18), 0x40000),
            (wire::MDS_CLOSE, ImportKind::Mdc, (23, 10), 0x20000),
            (wire::OST_WRITE, ImportKind::Osc, (6, 4), 0x30000),
            (wire::OST_WRITE, ImportKind::Mdc, (13, 10), 0x30000),
            (wire::OST_PUNCH, ImportKind::Mdc, (13, 10), 0x30000),
            (wire::OBD_PING, ImportKind::Lwp, (12, 10), 0x10000),
            (wire::MGS_TARGET_REG, ImportKind::Mgc, (26, 25), 0x60000),
            (
                wire::LLOG_ORIGIN_HANDLE_CREATE,
                ImportKind::Mgc,
                (26, 25),
                0x50000,
            ),
            (wire::FLD_QUERY, ImportKind::Mdc, (29, 10), 0x20000),
            (wire::OUT_UPDATE, ImportKind::Osp, (24, 4), 0x20000),
            (wire::MDS_BATCH, ImportKind::Mdc, (24, 4), 0x20000),
            (wire::MDS_CONNECT, ImportKind::OspMdt, (24, 4), 0x10000),
            (wire::MDS_STATFS, ImportKind::OspMdt, (24, 4), 0x20000),
            (wire::LDLM_ENQUEUE, ImportKind::OspMdt, (24, 4), 0x40000),
            (wire::LDLM_CANCEL, ImportKind::OspMdt, (17, 18), 0x40000),
            (wire::SEQ_QUERY, ImportKind::OspMdt, (30, 10), 0x20000),
            (wire::FLD_QUERY, ImportKind::OspMdt, (29, 10), 0x20000),
            (wire::OST_CONNECT, ImportKind::Osc, (28, 4), 0x10000),
        ] {
            let portal = request_portal(opc, kind);
            assert_eq!((portal, reply_portal(portal)), portals, "{opc}");
            assert_eq!(version(opc), family, "{opc}");
        }
    }

    #[test]
    fn cancels_have_priority_and_no_limit_unlike_enqueues() {
        assert!(is_high_priority(wire::LDLM_CANCEL) && !is_limited(wire::LDLM_CANCEL));
        assert!(!is_high_priority(wire::LDLM_ENQUEUE) && is_limited(wire::LDLM_ENQUEUE));
    }
}
