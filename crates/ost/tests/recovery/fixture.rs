//! A store that outlives its targets, and a client that replays hand-made requests.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use cpt::BoxFuture;
use lnet::Lnet;
use osd::{BootId, ClientRecords, Index, MemoryIndex, MemoryObjects, Objects, OsdError, Space, Stores};
use testbase::by_hand::{body, next_reply, reply_buffer, send};
use wire::{
    Errno, Fid, LUSTRE_OBD_VERSION, LUSTRE_OST_VERSION, LustreHandle, MSG_REPLAY, Message, Nid, NiobufRemote,
    OBD_CONNECT_AT, OBD_CONNECT_BRW_SIZE, OBD_CONNECT_FID, OBD_CONNECT_FULL20, OBD_CONNECT_GRANT,
    OBD_CONNECT_GRANT_PARAM, OBD_CONNECT_SHORTIO, OBD_FL_SHORT_IO, OBD_MD_FLBLOCKS, OBD_MD_FLCKSUM,
    OBD_MD_FLFID, OBD_MD_FLFLAGS, OBD_MD_FLGRANT, OBD_MD_FLSIZE, OBD_MD_FLUID, OBD_OBJECT_EOF,
    OSC_REPLY_PORTAL, OST_CONNECT, OST_DISCONNECT, OST_FALLOCATE, OST_IO_PORTAL, OST_PUNCH,
    OST_REQUEST_PORTAL, OST_WRITE, ObdConnectData, ObdIoobj, Obdo, OstBody, PtlrpcBody, Transno, WireStruct,
    checksum::ChecksumType, nul_terminated,
};

use crate::fixture::{Node, TARGET, obdo};

/// The client that recovers.
pub(super) const CLIENT: &str = "client-a";

const SPACE_BYTES: u64 = 64 << 20;

/// A store in memory. Each start of a target opens the same one.
pub(super) struct SharedStore {
    pub(super) index: Arc<dyn Index>,
    objects: Arc<dyn Objects>,
}

impl SharedStore {
    pub(super) fn new() -> SharedStore {
        let index = MemoryIndex::new(Space::of_memory(SPACE_BYTES));
        let objects = MemoryObjects::new(index.space().clone());
        SharedStore {
            index: Arc::new(index),
            objects: Arc::new(objects),
        }
    }

    /// The store after a power failure: without the data that was not committed. The rest of the
    /// index is as it was.
    pub(super) fn without_objects(&self) -> SharedStore {
        SharedStore {
            index: self.index.clone(),
            objects: Arc::new(MemoryObjects::new(self.index.space().clone())),
        }
    }

    /// Makes a record of [`CLIENT`], as for a client in another process.
    pub(super) async fn remember_client(&self) {
        let nid = Nid::tcp(Ipv4Addr::new(10, 0, 0, 9), 0);
        let records = ClientRecords::load(self.index.clone()).await.unwrap();
        records.remember(CLIENT, nid, false).await.unwrap();
    }
}

impl Stores for SharedStore {
    fn has_run(&self) -> bool {
        true
    }

    fn boot_id(&self) -> BootId {
        BootId([1; 16])
    }

    fn open_index(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        Box::pin(async { Ok(self.index.clone()) })
    }

    fn open_index_read_only(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        self.open_index()
    }

    fn open_objects<'a>(
        &'a self,
        _index: &'a Arc<dyn Index>,
    ) -> BoxFuture<'a, Result<Arc<dyn Objects>, OsdError>> {
        Box::pin(async { Ok(self.objects.clone()) })
    }
}

/// A change that a client replays.
#[derive(Clone)]
pub(super) struct Replay {
    opc: u32,
    oa: Obdo,
    data: Option<(u64, &'static [u8])>,
    capability: Bytes,
}

impl Replay {
    fn new(opc: u32, oa: Obdo) -> Replay {
        Replay {
            opc,
            oa,
            data: None,
            capability: Bytes::new(),
        }
    }

    /// A write without a grant, with the owner 1000.
    pub(super) fn write(fid: Fid, offset: u64, data: &'static [u8]) -> Replay {
        let oa = Obdo {
            o_valid: obdo(fid).o_valid | OBD_MD_FLFLAGS | OBD_MD_FLUID,
            o_flags: OBD_FL_SHORT_IO,
            o_uid: 1000,
            ..obdo(fid)
        };
        Replay {
            data: Some((offset, data)),
            ..Replay::new(OST_WRITE, oa)
        }
    }

    pub(super) fn truncate(fid: Fid, size: u64) -> Replay {
        let oa = Obdo {
            o_valid: obdo(fid).o_valid | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS,
            o_size: size,
            o_blocks: OBD_OBJECT_EOF,
            ..obdo(fid)
        };
        Replay::new(OST_PUNCH, oa)
    }

    pub(super) fn allocate(fid: Fid, start: u64, end: u64) -> Replay {
        let oa = Obdo {
            o_valid: obdo(fid).o_valid | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS,
            o_size: start,
            o_blocks: end,
            ..obdo(fid)
        };
        Replay::new(OST_FALLOCATE, oa)
    }

    /// States the FID of the object's file.
    pub(super) fn with_parent(mut self, parent: Fid) -> Replay {
        self.oa.o_valid |= OBD_MD_FLFID;
        (self.oa.o_parent_seq, self.oa.o_parent_oid) = (parent.f_seq, parent.f_oid);
        self
    }

    /// States a checksum of the data that is wrong.
    pub(super) fn with_wrong_checksum(mut self) -> Replay {
        self.oa.o_valid |= OBD_MD_FLCKSUM;
        self.oa.o_flags |= ChecksumType::Crc32c.flags();
        self.oa.set_o_cksum(1);
        self
    }

    /// States that the write used this grant.
    pub(super) fn with_used_grant(mut self, bytes: u64) -> Replay {
        self.oa.o_valid |= OBD_MD_FLBLOCKS | OBD_MD_FLGRANT;
        self.oa.set_o_grant_used(bytes);
        self
    }

    pub(super) fn with_capability(mut self, capability: Bytes) -> Replay {
        self.capability = capability;
        self
    }

    fn bufs(&self) -> Vec<Bytes> {
        let body = OstBody { oa: self.oa }.to_bytes();
        let Some((offset, data)) = self.data else {
            return vec![body, self.capability.clone()];
        };
        let object = ObdIoobj {
            ioo_oid: self.oa.o_oi,
            ioo_max_brw: 0,
            ioo_bufcnt: 1,
        };
        let range = NiobufRemote {
            rnb_offset: offset,
            rnb_len: data.len() as u32,
            rnb_flags: 0,
        };
        vec![
            body,
            object.to_bytes(),
            range.to_bytes(),
            self.capability.clone(),
            Bytes::from_static(data),
        ]
    }
}

/// [`CLIENT`] after a restart of the target.
pub(super) struct Returning {
    lnet: Arc<Lnet>,
    handle: u64,
    /// The grant in the connect reply, bytes.
    pub(super) grant_bytes: u32,
    last_xid: Cell<u64>,
}

impl Returning {
    /// Connects again, and reports a grant.
    pub(super) async fn connect(node: &Node, grant_bytes: u32) -> Returning {
        let lnet = node.rpc.lnet().clone();
        let data = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_FULL20
                | OBD_CONNECT_AT
                | OBD_CONNECT_FID
                | OBD_CONNECT_SHORTIO
                | OBD_CONNECT_GRANT
                | OBD_CONNECT_GRANT_PARAM
                | OBD_CONNECT_BRW_SIZE,
            ocd_brw_size: 1 << 20,
            ocd_grant: grant_bytes,
            ..ObdConnectData::default()
        };
        let bufs = [
            nul_terminated(TARGET.as_bytes()),
            nul_terminated(CLIENT.as_bytes()),
            LustreHandle { cookie: 77 }.to_bytes(),
            data.to_bytes(),
            Bytes::new(),
        ];
        let mut returning = Returning {
            lnet,
            handle: 0,
            grant_bytes: 0,
            last_xid: Cell::new(0x7000_0000),
        };
        let connect = body(OST_CONNECT, LUSTRE_OBD_VERSION, 0);
        let (body, reply) = returning.send(OST_REQUEST_PORTAL, connect, bufs).await;
        assert_eq!(body.pb_status, 0);
        returning.handle = body.pb_handle.cookie;
        returning.grant_bytes = reply.get::<ObdConnectData>(1).unwrap().ocd_grant;
        returning
    }

    pub(super) async fn disconnect(&self) {
        let request = body(OST_DISCONNECT, LUSTRE_OBD_VERSION, self.handle);
        let (body, _) = self.send(OST_REQUEST_PORTAL, request, []).await;
        assert_eq!(body.pb_status, 0);
    }

    /// Replays a change under its number; returns the body of the reply.
    pub(super) async fn replay(&self, transno: Transno, change: &Replay) -> PtlrpcBody {
        let request = PtlrpcBody {
            pb_flags: MSG_REPLAY,
            pb_transno: transno.0,
            ..body(change.opc, LUSTRE_OST_VERSION, self.handle)
        };
        self.send(OST_IO_PORTAL, request, change.bufs()).await.0
    }

    /// Replays a change, which succeeds.
    pub(super) async fn replays(&self, transno: Transno, change: &Replay) {
        let body = self.replay(transno, change).await;
        assert_eq!((body.pb_status, body.pb_transno), (0, transno.0));
    }

    /// Replays a change that fails.
    pub(super) async fn fails_to_replay(&self, transno: Transno, change: &Replay) -> Errno {
        Errno::from_status(self.replay(transno, change).await.pb_status).unwrap()
    }

    async fn send(
        &self,
        portal: u32,
        request: PtlrpcBody,
        bufs: impl IntoIterator<Item = Bytes>,
    ) -> (PtlrpcBody, Message) {
        let xid = self.last_xid.get() + 128;
        self.last_xid.set(xid);
        let mut buffer = reply_buffer(&self.lnet, OSC_REPLY_PORTAL, xid);
        let message = Message {
            flags: 0,
            ..Message::new(&request, bufs)
        };
        send(&self.lnet, Nid::LO, portal, xid, &message).await;
        let (_, reply) = next_reply(&mut buffer).await;
        (reply.body().unwrap(), reply)
    }
}
