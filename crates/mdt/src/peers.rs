//! The other MDTs of the file system: this MDT's connection to each of them (Lustre's OSP between
//! MDTs, such as `testfs-MDT0001-osp-MDT0000`), and the clients of this MDT that are MDTs.
//!
//! Each MDT connects to every other MDT in the configuration and stays connected. Requests between
//! MDTs have a portal of their own ([`rpc::ImportKind::OspMdt`]), and a recovering MDT handles them
//! at once, because neither of two MDTs that recover may wait for the other. An MDT keeps no record
//! of another MDT as a client, so a dead MDT delays no recovery.
//!
//! A target that answers a request of one MDT must not wait for the answer of a third one in it:
//! the slots of the portal could fill up in a circle.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use arc_swap::ArcSwap;
use mgc::{FsConfig, NidTable, TargetConf};
use params::{Group, Param, Registry};
use parking_lot::Mutex;
use rpc::{
    BoxFuture, ConnectRequest, Export, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, Ptlrpc,
    Reply,
};
use tokio::sync::watch;
use wire::{
    Errno, LUSTRE_VERSION_CODE, MDS_INODELOCK_FULL, Message, OBD_CONNECT_64BITHASH, OBD_CONNECT_ACL,
    OBD_CONNECT_AT, OBD_CONNECT_ATTRFID, OBD_CONNECT_BRW_SIZE, OBD_CONNECT_BULK_MBITS, OBD_CONNECT_FID,
    OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT_IBITS, OBD_CONNECT_LVB_TYPE, OBD_CONNECT_MAX_EASIZE,
    OBD_CONNECT_MDS_MDS, OBD_CONNECT_MULTIMODRPCS, OBD_CONNECT_VERSION, OBD_CONNECT_XATTR,
    OBD_CONNECT2_REP_MBITS, ObdConnectData,
};

use crate::connect::BRW_SIZE_MAX;

/// Maximum number of requests in flight to another MDT that take slots ([`Import::call`]).
const RPCS_IN_FLIGHT_MAX: u32 = 64;

/// All other MDTs of the file system.
pub(crate) struct Peers {
    rpc: Arc<Ptlrpc>,
    fsname: String,
    /// The index of this MDT.
    index: u32,
    /// The other MDTs, by index.
    peers: ArcSwap<BTreeMap<u32, Arc<Peer>>>,
    registry: Registry,
    /// The parameter groups of the peers.
    groups: Mutex<Vec<Group>>,
}

/// Another MDT.
pub(crate) struct Peer {
    import: Arc<Import>,
    /// The number of the connection: odd while connected, even while disconnected; each connect and
    /// disconnect increases it.
    connection: watch::Sender<u64>,
}

/// The owner of a peer's import: passes its events to the peer.
struct Owner(Weak<Peer>);

impl ImportOwner for Owner {
    fn callback<'a>(&'a self, _opc: u32, _msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        // An MDT holds no locks of other MDTs.
        Box::pin(async { Err(Errno::EINVAL) })
    }

    fn event(&self, event: ImportEvent) {
        let Some(peer) = self.0.upgrade() else { return };
        let connects = matches!(event, ImportEvent::Connected(_));
        peer.connection.send_if_modified(|number| {
            let was_connected = *number % 2 == 1;
            *number += match (connects, was_connected) {
                (true, true) => 2,
                (true, false) | (false, true) => 1,
                (false, false) => 0,
            };
            connects || was_connected
        });
    }
}

impl Peer {
    /// The connection.
    pub(crate) fn import(&self) -> &Arc<Import> {
        &self.import
    }

    /// Whether the MDT is connected.
    pub(crate) fn is_connected(&self) -> bool {
        *self.connection.borrow() % 2 == 1
    }
}

impl Peers {
    /// The peers of the MDT with this index; none yet.
    pub(crate) fn new(rpc: Arc<Ptlrpc>, fsname: &str, index: u32, registry: Registry) -> Peers {
        Peers {
            rpc,
            fsname: fsname.to_owned(),
            index,
            peers: ArcSwap::default(),
            registry,
            groups: Mutex::default(),
        }
    }

    /// Connects to each MDT of the configuration that is new, and updates the NIDs of the others.
    pub(crate) fn apply_config(&self, config: &FsConfig) {
        for target in config.mdts.iter().filter(|t| t.index != self.index) {
            match self.peers.load().get(&target.index) {
                Some(known) => known.import.set_nids(&target.nids),
                None => self.add(target),
            }
        }
    }

    /// Reconnects to MDTs that have started again.
    pub(crate) fn apply_locations(&self, table: &NidTable) {
        let peers = self.peers.load();
        for location in table.of_kind(true) {
            if let Some(known) = peers.get(&location.index) {
                known.import.target_started(&location.nids, location.instance);
            }
        }
    }

    fn add(&self, target: &TargetConf) {
        let name = format!("{}-osp-MDT{:04x}", target.name, self.index);
        let peer = Arc::new_cyclic(|peer| Peer {
            import: Import::new(
                &self.rpc,
                ImportConfig {
                    name: name.clone(),
                    target_uuid: target.uuid.clone(),
                    client_uuid: format!("{}-MDT{:04x}-mdtlov_UUID", self.fsname, self.index),
                    nids: target.nids.clone(),
                    kind: ImportKind::OspMdt,
                    connect: connect_data(),
                    max_rpcs_in_flight: RPCS_IN_FLIGHT_MAX,
                    owner: Arc::new(Owner(Weak::clone(peer))),
                },
            ),
            connection: watch::Sender::new(0),
        });
        let mut group = self.registry.group(format!("osp.{name}"));
        peer.import.add_params(&mut group);
        let shown = Arc::downgrade(&peer);
        let active = move || shown.upgrade().map_or(0, |peer| u8::from(peer.is_connected()));
        group.add(
            "active",
            Param::read_only(move || active().to_string()).about("1: connected"),
        );
        self.groups.lock().push(group);
        peer.import.start_connecting();
        self.peers.rcu(|peers| {
            let mut peers = BTreeMap::clone(peers);
            peers.insert(target.index, peer.clone());
            peers
        });
    }

    /// The MDT with this index.
    ///
    /// # Errors
    ///
    /// `ENODEV` if the configuration has no such MDT yet, or if it is this MDT.
    pub(crate) fn get(&self, index: u32) -> Result<Arc<Peer>, Errno> {
        self.peers.load().get(&index).cloned().ok_or(Errno::ENODEV)
    }

    /// The index of this MDT.
    pub(crate) fn own_index(&self) -> u32 {
        self.index
    }

    /// Whether there are no other MDTs.
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.load().is_empty()
    }

    /// All other MDTs, by index.
    pub(crate) fn all(&self) -> Arc<BTreeMap<u32, Arc<Peer>>> {
        self.peers.load_full()
    }

    /// The index of the MDT that is this client; `None` if the client is no MDT.
    pub(crate) fn index_of(&self, export: &Export) -> Option<u32> {
        let is_mdt = export.is_server() && export.has(OBD_CONNECT_MDS_MDS);
        mgc::mdt_index_of(&self.fsname, &export.client_uuid).filter(|_| is_mdt)
    }

    /// Checks a connect request that claims to come from an MDT: the configuration must have that
    /// MDT at the NID of the peer.
    ///
    /// # Errors
    ///
    /// `EAGAIN` if it has not: the MDT may have registered just now.
    pub(crate) fn check_claim(&self, req: &ConnectRequest, config: &FsConfig) -> Result<(), Errno> {
        if !req.wants(OBD_CONNECT_MDS_MDS) || req.peer == wire::Nid::LO {
            return Ok(());
        }
        let index = mgc::mdt_index_of(&self.fsname, &req.client_uuid);
        match index.and_then(|index| config.mdt(index)) {
            Some(mdt) if mdt.nids.contains(&req.peer) => Ok(()),
            _ => Err(Errno::EAGAIN),
        }
    }

    /// The connections to the other MDTs.
    pub(crate) fn imports(&self) -> Vec<Arc<Import>> {
        self.all().values().map(|peer| peer.import.clone()).collect()
    }

    /// Disconnects from all MDTs.
    pub(crate) async fn stop(&self) {
        self.groups.lock().clear();
        let peers = self.peers.swap(Arc::default());
        let mut disconnects = cpt::JoinSet::new();
        for peer in peers.values().cloned() {
            disconnects.spawn(async move { peer.import.disconnect().await });
        }
        disconnects.join_all().await;
    }
}

/// The connect data of an MDT that connects to another MDT.
fn connect_data() -> ObdConnectData {
    ObdConnectData {
        ocd_connect_flags: OBD_CONNECT_MDS_MDS
            | OBD_CONNECT_64BITHASH
            | OBD_CONNECT_ACL
            | OBD_CONNECT_AT
            | OBD_CONNECT_ATTRFID
            | OBD_CONNECT_BRW_SIZE
            | OBD_CONNECT_BULK_MBITS
            | OBD_CONNECT_FID
            | OBD_CONNECT_FLAGS2
            | OBD_CONNECT_FULL20
            | OBD_CONNECT_IBITS
            | OBD_CONNECT_LVB_TYPE
            | OBD_CONNECT_MAX_EASIZE
            | OBD_CONNECT_MULTIMODRPCS
            | OBD_CONNECT_VERSION
            | OBD_CONNECT_XATTR,
        ocd_connect_flags2: OBD_CONNECT2_REP_MBITS,
        ocd_version: LUSTRE_VERSION_CODE,
        ocd_ibits_known: MDS_INODELOCK_FULL,
        ocd_brw_size: BRW_SIZE_MAX,
        ..ObdConnectData::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use mgc::{FsConfig, TargetConf};
    use rpc::ConnectRequest;
    use testbase::rpc_node;
    use wire::{Errno, Nid, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS_MDS, ObdConnectData};

    use super::Peers;

    #[tokio::test]
    async fn a_connect_as_an_mdt_needs_the_nid_of_that_mdt() {
        let mdt = |index: u32, nid: &str| TargetConf {
            index,
            nids: vec![nid.parse().unwrap()],
            ..TargetConf::default()
        };
        let config = FsConfig {
            mdts: vec![mdt(0, "10.0.0.1@tcp"), mdt(1, "10.0.0.2@tcp")],
            ..FsConfig::default()
        };
        let peers = Peers::new(rpc_node::node(1), "fs", 0, Default::default());
        let check = |flags, uuid: &str, nid: &str| {
            let req = ConnectRequest {
                client_uuid: uuid.into(),
                peer: nid.parse().unwrap(),
                reconnects: false,
                recovers: false,
                data: ObdConnectData {
                    ocd_connect_flags: flags,
                    ..ObdConnectData::default()
                },
            };
            peers.check_claim(&req, &config)
        };
        let mdt1 = "fs-MDT0001-mdtlov_UUID";
        assert_eq!(check(OBD_CONNECT_MDS_MDS, mdt1, "10.0.0.2@tcp"), Ok(()));
        assert_eq!(check(OBD_CONNECT_MDS_MDS, mdt1, &Nid::LO.to_string()), Ok(()));
        for (uuid, nid) in [
            (mdt1, "10.0.0.1@tcp"),
            (mdt1, "10.0.0.3@tcp"),
            ("fs-MDT0002-mdtlov_UUID", "10.0.0.2@tcp"),
            ("someone", "10.0.0.2@tcp"),
        ] {
            let refused = check(OBD_CONNECT_MDS_MDS, uuid, nid);
            assert_eq!(refused, Err(Errno::EAGAIN), "{uuid} at {nid}");
        }
        assert_eq!(check(OBD_CONNECT_LIGHTWEIGHT, "someone", "10.0.0.3@tcp"), Ok(()));
    }
}
