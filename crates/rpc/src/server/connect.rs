//! Connect requests on the server: admission, the client's export, the granted flags
//! (docs/protocol.md, "Connect flags").

use super::recovery::TargetRecovery;
use super::targets::CLIENTS_PER_PEER_MAX;
use super::{Arrival, ConnectRequest, EndReason, Export, Reply, Role, TargetExports};
use crate::Ptlrpc;
use crate::import::{OWN_FLAGS, OWN_FLAGS2, parse_connect_data};
use lnet::warn_rate_limited;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::timeout;
use wire::format::bufs;
use wire::{
    Errno, LustreHandle, MSG_CONNECT_INITIAL, MSG_CONNECT_RECONNECT, MSG_CONNECT_RECOVERING,
    MSG_CONNECT_REPLAYABLE, Nid, OBD_CONNECT_FULL20, ObdConnectData, Transno, UUID_MAX, WireStruct,
};

/// The identity that a connect request states, and the role that the target admitted the peer in.
struct ClientIdentity {
    uuid: String,
    /// The client's import handle.
    cookie: u64,
    conn_cnt: u32,
    /// Whether the client has no handle of an earlier connection (`MSG_CONNECT_INITIAL`).
    initial: bool,
    role: Role,
}

/// The export for a connect.
enum ConnectExport {
    New(Arc<Export>),
    /// The client has connected before.
    Known(Arc<Export>),
}

impl ClientIdentity {
    /// Whether this connect comes from a restarted instance of the client that owns `export`.
    fn replaces(&self, export: &Export, from: Nid) -> bool {
        let restarted = export.client_cookie() != self.cookie;
        // A peer that is a server keeps its UUID over restarts and may return at another NID. The
        // target has admitted this NID as a server's, so the peer replaces the export with its
        // UUID, even the export of a client at another NID.
        restarted && self.initial && (self.role == Role::Server || export.peer() == from)
    }
}

/// Handles a connect. Returns the reply and the target's `last_committed`.
pub(crate) async fn connect(rpc: &Arc<Ptlrpc>, arrival: &Arrival) -> (Result<Reply, Errno>, Transno) {
    let target = arrival
        .msg
        .str(bufs::CONNECT_TARGET)
        .ok()
        .and_then(|uuid| rpc.targets().get(uuid));
    match target.filter(|t| !t.is_stopping()) {
        Some(target) => (
            connect_to(rpc, arrival, &target).await,
            target.target().last_committed(),
        ),
        None => (Err(Errno::ENODEV), Transno::NONE),
    }
}

async fn connect_to(
    rpc: &Arc<Ptlrpc>,
    arrival: &Arrival,
    exports: &Arc<TargetExports>,
) -> Result<Reply, Errno> {
    let target = exports.target();
    let uuid = arrival
        .msg
        .str(bufs::CONNECT_CLIENT)
        .ok()
        .filter(|uuid| !uuid.is_empty() && uuid.len() < UUID_MAX as usize);
    let uuid = uuid.ok_or(Errno::EPROTO)?.to_owned();
    let conn: LustreHandle = arrival.msg.get(bufs::CONNECT_HANDLE).map_err(|_| Errno::EPROTO)?;
    let requested = parse_connect_data(arrival.msg.buf(bufs::CONNECT_DATA));
    if requested.ocd_connect_flags & OBD_CONNECT_FULL20 == 0 {
        return Err(Errno::EPROTO);
    }
    let initial = arrival.body.pb_op_flags & MSG_CONNECT_INITIAL != 0;
    let req = ConnectRequest {
        client_uuid: uuid.clone(),
        peer: arrival.from,
        reconnects: !initial,
        recovers: false,
        data: requested,
    };
    let role = target.admit(&req)?;
    let identity = ClientIdentity {
        uuid,
        cookie: conn.cookie,
        conn_cnt: arrival.body.pb_conn_cnt,
        initial,
        role,
    };
    let ongoing = exports.recovery().filter(|_| role == Role::Client);
    if let Some(recovery) = ongoing {
        drop_lost_state(recovery, exports, &identity, arrival.from)?;
    }
    let recovery = ongoing.filter(|recovery| recovery.knows(&identity.uuid));
    let req = ConnectRequest {
        recovers: recovery.is_some(),
        ..req
    };
    let clearing = evict_earlier_exports(rpc, exports, &identity, arrival.from);
    timeout(rpc.config().connect_timeout, clearing)
        .await
        .map_err(|_| Errno::EBUSY)?;
    let granted = grant_requested(&requested, target.negotiate(&req)?);
    #[cfg(feature = "faults")]
    let granted = rpc.faults().limit_connect_data(arrival.body.pb_opc, granted);
    let mut op_flags = if target.replayable() {
        MSG_CONNECT_REPLAYABLE
    } else {
        0
    };
    let export = match find_or_create(rpc, exports, &identity, arrival.from)? {
        ConnectExport::New(export) => {
            match (recovery, ongoing) {
                (Some(recovery), _) => {
                    let (kept, holdings) = recovery.take_known(&identity.uuid);
                    export.replies.lock().add_kept(kept);
                    export.claims.restore(holdings);
                }
                (None, Some(_)) => export.claims.set_newcomer(),
                (None, None) => {}
            }
            export
        }
        ConnectExport::Known(export) => {
            op_flags |= MSG_CONNECT_RECONNECT;
            exports.stats().reconnects.fetch_add(1, Ordering::Relaxed);
            export
        }
    };
    export.record_connect(arrival.from, role, granted, identity.cookie, identity.conn_cnt);
    // A client in this process ends with the target, so it never recovers. A client that is new
    // during a recovery gets its record with its first claim: until then the target need not wait
    // for it.
    if ongoing.is_none()
        && role == Role::Client
        && arrival.from != Nid::LO
        && let Err(errno) = target.remember_client(&export).await
    {
        warn_rate_limited!(target_uuid = target.uuid(), client = %identity.uuid, %errno, "cannot record the client: it will be evicted at the next restart of the target");
    }
    rpc.exports().add(&export);
    if let Some(recovery) = recovery {
        op_flags |= MSG_CONNECT_RECOVERING;
        if !recovery.connected(&identity.uuid) {
            export.evict("it has not recovered in time").await;
        }
    }
    // The target's rules may have changed, and `evict_unadmitted` may have run before this export
    // was added.
    if target.admit(&req) != Ok(role) {
        export.evict("the target no longer admits the client").await;
    }
    if exports.is_stopping() {
        export.end(EndReason::TargetStops).await;
        return Err(Errno::ENODEV);
    }
    if export.is_gone() {
        // Evicted in the meantime: the client retries and gets a new export.
        rpc.exports().remove(export.handle);
        return Err(Errno::EBUSY);
    }
    tracing::debug!(target_uuid = target.uuid(), client = %identity.uuid, peer = %arrival.from, "connected");
    let handle = export.handle;
    Ok(Reply {
        handle,
        op_flags,
        ..Reply::new(vec![granted.to_bytes()])
    })
}

/// If a client of before the restart connects for the first time, it has lost its state: it is a
/// new client.
///
/// # Errors
///
/// `EBUSY` if the client connects from another node. It may connect after the recovery.
fn drop_lost_state(
    recovery: &TargetRecovery,
    exports: &TargetExports,
    identity: &ClientIdentity,
    from: Nid,
) -> Result<(), Errno> {
    let uuid = &identity.uuid;
    let lost_its_state = identity.initial && exports.client(uuid).is_none() && recovery.knows(uuid);
    if lost_its_state && !recovery.was_at(uuid, from) {
        return Err(Errno::EBUSY);
    }
    if lost_its_state {
        recovery.client_gone(uuid);
        exports.target().forget_client(uuid);
    }
    Ok(())
}

/// The connect data to grant: the target's and this layer's flags, limited to the requested ones.
fn grant_requested(requested: &ObdConnectData, mut data: ObdConnectData) -> ObdConnectData {
    data.ocd_connect_flags = (data.ocd_connect_flags | OWN_FLAGS) & requested.ocd_connect_flags;
    data.ocd_connect_flags2 = match data.ocd_connect_flags & wire::OBD_CONNECT_FLAGS2 {
        0 => 0,
        _ => (data.ocd_connect_flags2 | OWN_FLAGS2) & requested.ocd_connect_flags2,
    };
    data
}

/// Evicts the export of an earlier instance of the client, and waits until the target has dropped
/// its state. If the client's node has the maximum number of clients, first evicts all exports from
/// before the node's restart.
async fn evict_earlier_exports(
    rpc: &Ptlrpc,
    exports: &Arc<TargetExports>,
    identity: &ClientIdentity,
    from: Nid,
) {
    if exports.has_max_clients(from)
        && let Some(link) = rpc.lnet().link(from)
    {
        let is_earlier = |e: &Arc<Export>| e.origin == from && e.is_of_earlier_boot(&link);
        let earlier: Vec<_> = exports.all().into_iter().filter(is_earlier).collect();
        let why = "its node restarted and has too many clients";
        earlier.iter().for_each(|export| export.evict_soon(why));
        for export in earlier {
            export.ended().await;
        }
    }
    while let Some(export) = exports.client(&identity.uuid) {
        if export.is_gone() {
            export.ended().await;
        } else if identity.replaces(&export, from) {
            export.evict("the client restarted").await;
        } else {
            return;
        }
    }
}

/// The client's export: the known one if this connect continues its connection, or a new one.
fn find_or_create(
    rpc: &Arc<Ptlrpc>,
    exports: &Arc<TargetExports>,
    identity: &ClientIdentity,
    from: Nid,
) -> Result<ConnectExport, Errno> {
    match exports.by_client().lock().entry(identity.uuid.clone()) {
        Entry::Vacant(vacant) => {
            let Some(nid_stats) = exports.reserve_client(from) else {
                warn_rate_limited!(peer = %from, client = %identity.uuid, "connect refused: peer has too many clients (limit {CLIENTS_PER_PEER_MAX})");
                return Err(Errno::EBUSY);
            };
            let export = Export::new(rpc, exports, &identity.uuid, from, nid_stats);
            Ok(ConnectExport::New(vacant.insert(export).clone()))
        }
        Entry::Occupied(known) => {
            let export = known.get().clone();
            // Another client has this UUID, or a later connect has overtaken this one.
            if export.client_cookie() != identity.cookie || identity.conn_cnt <= export.conn_cnt() {
                return Err(Errno::EALREADY);
            }
            Ok(ConnectExport::Known(export))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::grant_requested;
    use wire::{OBD_CONNECT_AT, OBD_CONNECT_FID, OBD_CONNECT_FLAGS2, OBD_CONNECT_GRANT, ObdConnectData};

    #[test]
    fn only_requested_flags_are_granted() {
        let requested = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_AT | OBD_CONNECT_FID,
            ocd_connect_flags2: u64::MAX,
            ..Default::default()
        };
        let offered = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_FID | OBD_CONNECT_GRANT | OBD_CONNECT_FLAGS2,
            ocd_connect_flags2: u64::MAX,
            ..Default::default()
        };
        let data = grant_requested(&requested, offered);
        assert_eq!(data.ocd_connect_flags, OBD_CONNECT_AT | OBD_CONNECT_FID);
        assert_eq!(data.ocd_connect_flags2, 0);
    }
}
