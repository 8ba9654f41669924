//! Whose import it is: what it is made from, and who is told what happens to it.

use crate::{BoxFuture, Reply};
use std::sync::Arc;
use wire::{Errno, LUSTRE_SP_CLI, LUSTRE_SP_MDT, LUSTRE_SP_MGC, LUSTRE_SP_OST, Message, Nid, ObdConnectData};

/// What an import is for: decides opcodes, portals and how the sender calls itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImportKind {
    /// A client, or a server, of an MGS.
    Mgc,
    /// A client of an MDT.
    Mdc,
    /// A client of an OST.
    Osc,
    /// An MDT as a client of an OST.
    Osp,
    /// An OST as a client of an MDT (locations, sequences).
    Lwp,
}

impl ImportKind {
    /// `enum lustre_sec_part`, which goes into bits 31..24 of `lm_secflvr`.
    pub(crate) fn secflvr(self) -> u32 {
        let part = match self {
            ImportKind::Mgc => LUSTRE_SP_MGC,
            ImportKind::Mdc | ImportKind::Osc => LUSTRE_SP_CLI,
            ImportKind::Osp => LUSTRE_SP_MDT,
            ImportKind::Lwp => LUSTRE_SP_OST,
        };
        part << 24
    }
}

/// What an import is made from.
#[derive(Clone)]
pub struct ImportConfig {
    /// `testfs-OST0000-osc-ffff8800`: for messages.
    pub name: String,
    /// `testfs-OST0000_UUID`.
    pub target_uuid: String,
    /// Who we are: the same for all targets of a mount.
    pub client_uuid: String,
    /// Where the target may be.
    pub nids: Vec<Nid>,
    /// What it is for.
    pub kind: ImportKind,
    /// What is asked for when connecting.
    pub connect: ObdConnectData,
    /// `max_rpcs_in_flight`.
    pub max_rpcs_in_flight: u32,
    /// Who is told.
    pub owner: Arc<dyn ImportOwner>,
}

/// Who owns an import.
pub trait ImportOwner: Send + Sync {
    /// A lock callback from the server (`LDLM_BL_CALLBACK`, `LDLM_CP_CALLBACK`, `LDLM_GL_CALLBACK`): must answer at once
    /// and act later.
    fn callback<'a>(&'a self, opc: u32, msg: Message) -> BoxFuture<'a, Result<Reply, Errno>>;

    /// The connection changed. Called in order, from one task, and never while the import holds a lock of its own. New
    /// requests are sent only after `Evicted` and `Connected` have returned.
    fn event(&self, e: ImportEvent);

    /// Whether anything is held of the server, such as locks, that ends with the connection. Asked when nothing was
    /// requested for the import's `idle_timeout`.
    fn in_use(&self) -> bool {
        true
    }
}

/// What happens to an import.
#[derive(Debug, Clone)]
pub enum ImportEvent {
    /// Connected, for the first time or again; what the server granted.
    Connected(ObdConnectData),
    /// The server cannot be reached; requests wait, and the import tries to connect again.
    Disconnected,
    /// The server has forgotten this client: drop all locks and caches. `Connected` follows.
    Evicted,
    /// Disconnected because nothing is needed of the server (`idle_timeout`); `Connected` follows when something is.
    Idle,
    /// Disconnected for good.
    Closed,
}
