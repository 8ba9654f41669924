//! The interface that servers (MGS, MDT, OST) implement.

use super::known::{KeptReply, KnownClient};
use super::{Export, Holdings, Mark, Reply, ServerRequest};
use crate::BoxFuture;
use params::Operations;
use std::sync::Arc;
use wire::{
    Errno, Nid, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS, OBD_CONNECT_MDS_MDS, ObdConnectData, Transno,
};

/// The role of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A client of the file system.
    Client,
    /// A server of the same file system: an MDT to an OST, any target to an MDT.
    Server,
}

/// Why an export ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// The client has disconnected.
    Disconnected,
    /// The server has evicted the client.
    Evicted,
    /// The target stops. Its next start lets the client recover.
    TargetStops,
}

/// A connect request, as the target sees it.
#[derive(Debug, Clone)]
pub struct ConnectRequest {
    /// The client's UUID.
    pub client_uuid: String,
    /// The client's NID.
    pub peer: Nid,
    /// Whether the client says that it was connected to this target before, perhaps before a
    /// restart of the target.
    pub reconnects: bool,
    /// Whether the client takes part in the recovery after the target's restart.
    pub recovers: bool,
    /// The requested flags and fields.
    pub data: ObdConnectData,
}

impl ConnectRequest {
    /// Whether `flag` of `ocd_connect_flags` is requested.
    pub fn wants(&self, flag: u64) -> bool {
        self.data.ocd_connect_flags & flag == flag
    }

    /// Whether `flag` of `ocd_connect_flags2` is requested.
    pub fn wants2(&self, flag: u64) -> bool {
        self.wants(wire::OBD_CONNECT_FLAGS2) && self.data.ocd_connect_flags2 & flag == flag
    }

    /// Whether the peer claims to be a server. The claim proves nothing: any peer can make it.
    pub fn claims_server(&self) -> bool {
        let server = OBD_CONNECT_MDS | OBD_CONNECT_LIGHTWEIGHT | OBD_CONNECT_MDS_MDS;
        self.data.ocd_connect_flags & server != 0
    }
}

/// A target: an MGS, an MDT or an OST.
pub trait Target: Send + Sync + 'static {
    /// The UUID, such as `testfs-MDT0000_UUID` or `MGS`.
    fn uuid(&self) -> &str;

    /// Decides whether the peer may connect, and in which role. The decision uses the peer's NID,
    /// never its claims. By default every peer is admitted as a client.
    ///
    /// # Errors
    ///
    /// The negative status of the reply.
    fn admit(&self, _req: &ConnectRequest) -> Result<Role, Errno> {
        Ok(Role::Client)
    }

    /// Returns the connect data to grant: the requested flags that the target implements, with
    /// their fields. The RPC layer removes flags that were not requested.
    ///
    /// # Errors
    ///
    /// The negative status of the reply.
    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno>;

    /// The transno up to which all transactions are committed.
    fn last_committed(&self) -> Transno;

    /// Resolves when a transaction is committed. By default never.
    fn committed<'a>(&'a self, _transno: Transno) -> BoxFuture<'a, ()> {
        Box::pin(std::future::pending())
    }

    /// Whether a connect reply has the flag `MSG_CONNECT_REPLAYABLE` (MDT, OST).
    fn replayable(&self) -> bool;

    /// Name and unit of each operation that the target counts, in Lustre's order. A target without
    /// operations has no statistics.
    fn operations(&self) -> Operations {
        &[]
    }

    /// Handles every request but connect, disconnect and ping.
    ///
    /// # Errors
    ///
    /// The negative status of the reply. For `ENOTSUPP`, an opcode without a handler, the RPC layer
    /// logs the request.
    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>>;

    /// The clients of earlier starts that may recover. Called once, by
    /// [`crate::Ptlrpc::add_target`]. Without such clients the target serves requests at once.
    fn known_clients(&self) -> Vec<KnownClient> {
        Vec::new()
    }

    /// Makes a record of a new client durable, so that the client can recover after a crash of
    /// this server. Called before the reply to the client's first connect, for clients of other
    /// processes only.
    ///
    /// # Errors
    ///
    /// Why the record cannot be written. The client is admitted nevertheless.
    fn remember_client<'a>(&'a self, _export: &'a Arc<Export>) -> BoxFuture<'a, Result<(), Errno>> {
        Box::pin(async { Ok(()) })
    }

    /// Records durably that a client may hold something in a part of the target. Called before the
    /// client gets anything there. The mark stands for those of `replaced`, too.
    ///
    /// # Errors
    ///
    /// Why the record cannot be written.
    fn record_holdings<'a>(
        &'a self,
        _export: &'a Arc<Export>,
        _mark: Mark,
        _replaced: Vec<Mark>,
    ) -> BoxFuture<'a, Result<(), Errno>> {
        Box::pin(async { Ok(()) })
    }

    /// Replaces the record of what a client may hold by `now`. A crash may bring the former record
    /// back.
    fn replace_holdings(&self, _export: &Arc<Export>, _before: &Holdings, _now: &Holdings) {}

    /// The parts in which a client holds locks or open files at present. `None` if the target keeps
    /// no record of that.
    fn holdings_of(&self, _export: &Arc<Export>) -> Option<Holdings> {
        None
    }

    /// Removes the record of a client that has not reconnected in time.
    fn forget_client(&self, _client_uuid: &str) {}

    /// Builds the reply to a request that an earlier start of the target has executed, from the
    /// part of the reply that the target kept.
    ///
    /// # Errors
    ///
    /// The negative status of the reply.
    fn reconstruct<'a>(
        &'a self,
        req: &'a mut ServerRequest,
        _kept: KeptReply,
    ) -> BoxFuture<'a, Result<Reply, Errno>> {
        self.handle(req)
    }

    /// The administrator ends the recovery: the target waits no longer for others.
    fn recovery_aborted(&self) {}

    /// All clients have recovered or are evicted: the target serves new requests once this has
    /// returned.
    fn recovered<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    /// Drops the locks, open files and grants of a client, and its record unless the target stops.
    /// The client can connect again only afterwards.
    fn export_gone<'a>(&'a self, export: &'a Arc<Export>, why: EndReason) -> BoxFuture<'a, ()>;

    /// Drops locks and open files that requests in execution left behind after
    /// [`Target::export_gone`]. Called when the last of them has ended; the client may have a new
    /// export by then.
    fn last_request_done<'a>(&'a self, _export: &'a Arc<Export>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}
