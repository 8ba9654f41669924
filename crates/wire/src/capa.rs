//! Object capabilities in the format of Lustre up to 2.7: the MDT signs a capability for one client
//! and one object, and the client presents it to the OST. The structure and its buffers
//! (`RMF_CAPA1`, `RMF_CAPA2`) are Lustre's; current Lustre leaves these buffers empty. For the
//! signature see [docs/security.md](../../../docs/security.md).

use crate::{
    LDLM_ENQUEUE, LuFid, OST_FALLOCATE, OST_GETATTR, OST_PUNCH, OST_READ, OST_SEEK, OST_SETATTR, OST_SYNC,
    OST_WRITE, layout::wire_structs,
};

wire_structs! {
    #[derive(Copy, Hash)]
    pub struct LustreCapa("lustre_capa", 120) {
        lc_fid: LuFid, lc_opc: u64, lc_uid: u64, lc_gid: u64, lc_flags: u32, lc_keyid: u32, lc_timeout: u32,
        lc_expiry: u32, lc_hmac: [u8; 32], lc_hmac_unused: [u8; 32],
    }
}

/// Right to write data.
pub const CAPA_OPC_OSS_WRITE: u64 = 1 << 5;
/// Right to read data.
pub const CAPA_OPC_OSS_READ: u64 = 1 << 6;
/// Right to truncate the object.
pub const CAPA_OPC_OSS_TRUNC: u64 = 1 << 7;
/// Right to set attributes.
pub const CAPA_OPC_META_WRITE: u64 = 1 << 9;
/// Right to read attributes.
pub const CAPA_OPC_META_READ: u64 = 1 << 10;

/// In `mbo_valid` of a getattr request: the client requests a capability for the object in
/// `RMF_CAPA1`. In the reply: the capability is in `RMF_CAPA2`.
pub const OBD_MD_FLOSSCAPA: u64 = 0x400_0000_0000;

/// The rights and the buffer to check for a request to an OST: the capability must grant at least
/// one of the rights, and is at this index of [`Message::bufs`](crate::Message). `None` if the
/// request needs no capability. `writes` says whether the mode of the requested lock allows
/// writing.
pub fn capability_needed(opc: u32, writes: bool) -> Option<(u64, usize)> {
    match opc {
        OST_READ => Some((CAPA_OPC_OSS_READ, 4)),
        OST_WRITE => Some((CAPA_OPC_OSS_WRITE, 4)),
        OST_PUNCH => Some((CAPA_OPC_OSS_TRUNC, 2)),
        OST_FALLOCATE => Some((CAPA_OPC_OSS_WRITE, 2)),
        OST_SEEK => Some((CAPA_OPC_OSS_READ, 2)),
        OST_SETATTR => Some((CAPA_OPC_META_WRITE, 2)),
        OST_GETATTR | OST_SYNC => Some((CAPA_OPC_META_READ, 2)),
        // Buffer 2 is the place of an intent; an enqueue on an object sends none.
        LDLM_ENQUEUE if writes => Some((CAPA_OPC_OSS_WRITE | CAPA_OPC_OSS_TRUNC | CAPA_OPC_META_WRITE, 3)),
        LDLM_ENQUEUE => Some((CAPA_OPC_META_READ, 3)),
        _ => None,
    }
}
