//! What a server is to the RPC layer: something with a UUID that negotiates, and handles requests.

use super::{Export, Reply, ServerRequest};
use crate::BoxFuture;
use std::sync::Arc;
use wire::{Errno, Nid, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS, OBD_CONNECT_MDS_MDS, ObdConnectData};

/// What a peer is to a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A client: it uses what the target serves.
    Client,
    /// A server of the same file system: an MDT to an OST, any target to an MDT.
    Server,
}

/// A request to connect, as far as the target has a say in it.
#[derive(Debug, Clone)]
pub struct ConnectRequest {
    /// Who wants to connect.
    pub client_uuid: String,
    /// From where.
    pub peer: Nid,
    /// Whether it had a connection before, to this target or to one before its restart.
    pub reconnects: bool,
    /// What it asks for.
    pub data: ObdConnectData,
}

impl ConnectRequest {
    /// Whether `flag` of `ocd_connect_flags` is asked for.
    pub fn wants(&self, flag: u64) -> bool {
        self.data.ocd_connect_flags & flag == flag
    }

    /// Whether `flag` of `ocd_connect_flags2` is asked for.
    pub fn wants2(&self, flag: u64) -> bool {
        self.wants(wire::OBD_CONNECT_FLAGS2) && self.data.ocd_connect_flags2 & flag == flag
    }

    /// Whether the peer says that it is a server. Anybody can say so: it proves nothing.
    pub fn claims_server(&self) -> bool {
        let server = OBD_CONNECT_MDS | OBD_CONNECT_LIGHTWEIGHT | OBD_CONNECT_MDS_MDS;
        self.data.ocd_connect_flags & server != 0
    }
}

/// A server: an MGS, an MDT or an OST.
pub trait Target: Send + Sync + 'static {
    /// `testfs-MDT0000_UUID`, `MGS`.
    fn uuid(&self) -> &str;

    /// Decides whether the peer may connect, and what it is to this target. The peer's NID decides, never what the
    /// request says about the peer. Without an implementation of its own a target takes every peer for a client.
    fn admit(&self, _req: &ConnectRequest) -> Result<Role, Errno> {
        Ok(Role::Client)
    }

    /// What is granted: what is asked for and implemented, with the fields that go with it. Flags that were not asked for
    /// are taken out again.
    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno>;

    /// The highest transaction number below which everything is durable.
    fn last_committed(&self) -> u64;

    /// Whether transactions can be replayed (MDT, OST).
    fn replayable(&self) -> bool;

    /// Handles every request but connect, disconnect and ping. What there is no handler for is `Errno::ENOTSUPP`:
    /// it is logged, and refused as its sender expects.
    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>>;

    /// A client is gone: its locks, open files and grants go too. It can connect again only when this is done.
    fn export_gone<'a>(&'a self, export: &'a Arc<Export>, evicted: bool) -> BoxFuture<'a, ()>;

    /// The last of the requests that were being handled when the client went has come to its end: what they left to the
    /// export meanwhile (locks, open files) goes too. The client may have a new export by now.
    fn last_request_done<'a>(&'a self, _export: &'a Arc<Export>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}
