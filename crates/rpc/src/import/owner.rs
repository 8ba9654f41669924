//! The configuration of an import, and the interface to its owner.

use crate::{BoxFuture, Reply, RpcError};
use std::sync::Arc;
use wire::{Errno, LUSTRE_SP_CLI, LUSTRE_SP_MDT, LUSTRE_SP_MGC, LUSTRE_SP_OST, Message, Nid, ObdConnectData};

/// The kind of an import. It determines opcodes, portals and the sender's part in `lm_secflvr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImportKind {
    /// A client or a server, connected to the MGS.
    Mgc,
    /// A client, connected to an MDT.
    Mdc,
    /// A client, connected to an OST.
    Osc,
    /// An MDT, connected to an OST.
    Osp,
    /// An MDT, connected to another MDT.
    OspMdt,
    /// An OST, connected to an MDT to get FID sequences.
    Lwp,
}

impl ImportKind {
    /// `enum lustre_sec_part` in bits 31..24 of `lm_secflvr`.
    pub(crate) fn secflvr(self) -> u32 {
        let part = match self {
            ImportKind::Mgc => LUSTRE_SP_MGC,
            ImportKind::Mdc | ImportKind::Osc => LUSTRE_SP_CLI,
            ImportKind::Osp | ImportKind::OspMdt => LUSTRE_SP_MDT,
            ImportKind::Lwp => LUSTRE_SP_OST,
        };
        part << 24
    }
}

/// The configuration of an import.
#[derive(Clone)]
pub struct ImportConfig {
    /// Name in logs, such as `testfs-OST0000-osc-ffff8800`.
    pub name: String,
    /// Target's UUID, such as `testfs-OST0000_UUID`.
    pub target_uuid: String,
    /// This client's UUID, the same for all targets of a mount.
    pub client_uuid: String,
    /// The target's NIDs.
    pub nids: Vec<Nid>,
    /// Kind of client and target.
    pub kind: ImportKind,
    /// Connect flags and fields to request.
    pub connect: ObdConnectData,
    /// `max_rpcs_in_flight`.
    pub max_rpcs_in_flight: u32,
    /// Receives callbacks and connection events.
    pub owner: Arc<dyn ImportOwner>,
}

/// The owner of an import.
pub trait ImportOwner: Send + Sync {
    /// Handles a lock callback from the server (`LDLM_BL_CALLBACK`, `LDLM_CP_CALLBACK`,
    /// `LDLM_GL_CALLBACK`). The owner must reply at once and act later.
    ///
    /// # Errors
    ///
    /// The negative status of the reply.
    fn callback<'a>(&'a self, opc: u32, msg: Message) -> BoxFuture<'a, Result<Reply, Errno>>;

    /// Handles a change of the connection. One task makes these calls in order, and holds none of
    /// the import's mutexes meanwhile. The import sends new requests only after the calls for
    /// `Evicted` and `Connected` have returned.
    fn event(&self, event: ImportEvent);

    /// Claims the owner's locks again at a server that has restarted: enqueues each granted and
    /// each waiting lock with `LDLM_FL_REPLAY`, in requests with [`crate::Replay::Lock`].
    /// The import sends no other requests meanwhile.
    ///
    /// # Errors
    ///
    /// The error of a request, if the connection was lost. The import then reconnects, and replays
    /// everything again.
    fn replay_locks<'a>(&'a self) -> BoxFuture<'a, Result<(), RpcError>> {
        Box::pin(async { Ok(()) })
    }

    /// Whether the owner holds anything that ends with the connection, such as locks. If not, the
    /// import disconnects. Called after `idle_timeout` without a request.
    fn in_use(&self) -> bool {
        true
    }
}

/// A change of an import's connection.
#[derive(Debug, Clone)]
pub enum ImportEvent {
    /// Connected or reconnected, with the granted connect data.
    Connected(ObdConnectData),
    /// The connection is lost; requests wait while the import reconnects.
    Disconnected,
    /// The server evicted this client: drop all locks and caches. `Connected` follows.
    Evicted,
    /// Disconnected because the import is idle (`idle_timeout`); the next request reconnects.
    Idle,
    /// Closed for good.
    Closed,
}
