//! RPC messages: garbage on request portals, stolen handles and names, false server connections,
//! reply slots, repeated requests, misplaced opcodes, and missing bulk.

use std::sync::Arc;

use bytes::Bytes;
use lnet::{Lnet, Payload};
use tokio::time::timeout;
use wire::{
    Errno, Fid, LDLM_CANCEL_REPLY_PORTAL, LDLM_CANCEL_REQUEST_PORTAL, LDLM_ENQUEUE, LUSTRE_MDS_VERSION,
    LUSTRE_OST_VERSION, LustreMsgV2, MDC_REPLY_PORTAL, MDS_GETATTR, MDS_READPAGE_PORTAL, MDS_REINT,
    MDS_REQUEST_PORTAL, MDS_STATFS, MGC_REPLY_PORTAL, MGS_REQUEST_PORTAL, MSG_RESENT, MdtRecCreate, Message,
    Nid, OBD_CONNECT_AT, OBD_CONNECT_FULL20, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS, OBD_CONNECT_MDS_MDS,
    OSC_REPLY_PORTAL, OST_IO_PORTAL, OST_READ, OST_REQUEST_PORTAL, ObdConnectData, PtlrpcBody, REINT_CREATE,
    WireStruct,
};

use crate::hostile::attacked_fs::{AttackedFs, MDT, OST};
use testbase::by_hand::{body, connect_to, next_reply, reply_buffer, send};
use testbase::sockets::{LIMIT, addresses, node};

/// The portals of requests that the attacks use.
const REQUEST_PORTALS: [u32; 6] = [
    MDS_REQUEST_PORTAL,
    LDLM_CANCEL_REQUEST_PORTAL,
    MDS_READPAGE_PORTAL,
    MGS_REQUEST_PORTAL,
    OST_REQUEST_PORTAL,
    OST_IO_PORTAL,
];
/// Number of clients that one node pretends to be, above the limit.
const CLIENTS: u32 = 1100;

/// A node that sends hand-made messages, connected to the MDT.
struct RawClient {
    lnet: Arc<Lnet>,
    to: Nid,
    handle: u64,
    xid: std::cell::Cell<u64>,
}

fn connect_data(flags: u64) -> ObdConnectData {
    ObdConnectData {
        ocd_connect_flags: OBD_CONNECT_FULL20 | OBD_CONNECT_AT | flags,
        ..ObdConnectData::default()
    }
}

impl RawClient {
    async fn connect(to: Nid, uuid: &str) -> RawClient {
        let (_, nid) = addresses();
        let lnet = node(nid).await;
        let (_, body, _) = connect_to(&lnet, to, MDT, uuid, (5, 1, true), connect_data(0)).await;
        assert_eq!(body.pb_status, 0);
        RawClient {
            lnet,
            to,
            handle: body.pb_handle.cookie,
            xid: std::cell::Cell::new(1 << 40),
        }
    }

    /// Sends a message to a portal. Returns the body of the reply, or `None` after [`LIMIT`].
    async fn request(&self, portal: u32, xid: u64, msg: &Message) -> Option<PtlrpcBody> {
        let mut buffers = [
            OSC_REPLY_PORTAL,
            MDC_REPLY_PORTAL,
            LDLM_CANCEL_REPLY_PORTAL,
            MGC_REPLY_PORTAL,
        ]
        .map(|reply| reply_buffer(&self.lnet, reply, xid));
        send(&self.lnet, self.to, portal, xid, msg).await;
        let [a, b, c, d] = &mut buffers;
        let reply = async {
            tokio::select! {
                reply = next_reply(a) => reply,
                reply = next_reply(b) => reply,
                reply = next_reply(c) => reply,
                reply = next_reply(d) => reply,
            }
        };
        let (_, reply) = timeout(LIMIT, reply).await.ok()?;
        reply.body().ok()
    }

    fn next_xid(&self) -> u64 {
        self.xid.set(self.xid.get() + 128);
        self.xid.get()
    }

    async fn status(&self, portal: u32, body: PtlrpcBody, bufs: &[Bytes]) -> i32 {
        let msg = Message::new(&body, bufs.iter().cloned());
        let reply = self.request(portal, self.next_xid(), &msg).await;
        reply
            .unwrap_or_else(|| panic!("no answer to {:#x}", body.pb_opc))
            .pb_status
    }

    fn statfs(&self) -> PtlrpcBody {
        body(MDS_STATFS, LUSTRE_MDS_VERSION, self.handle)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn illegal_messages_are_rejected() {
    let attacked = AttackedFs::new();
    let first = RawClient::connect(attacked.nid, "first").await;
    assert_eq!(first.status(MDS_REQUEST_PORTAL, first.statfs(), &[]).await, 0);
    send_garbage_to_every_portal(&first).await;
    attacked.wait_for_log("dropping malformed request");
    attacked.check_progress("garbage on portals");
    send_every_opcode_to_every_portal(&first).await;
    attacked.check_progress("every opcode");
    connect_as_false_servers(&first).await;
    attacked.wait_for_log("connect as a server refused");
    attacked.check_not_logged("evicting");
    attacked.check_progress("pretended servers");
    let second = RawClient::connect(attacked.nid, "second").await;
    use_handles_and_names_of_others(&first, &second).await;
    attacked.wait_for_log("request refused: its handle belongs to another peer");
    attacked.check_progress("handles of others");
    use_slots_and_portals_not_granted(&second).await;
    attacked.wait_for_log("request refused: pb_tag exceeds the granted slots");
    attacked.check_progress("slots and portals");
    repeat_requests(&second, &attacked).await;
    attacked.check_progress("repeated requests");
    connect_too_many_clients(&second).await;
    attacked.wait_for_log("connect refused: peer has too many clients");
    attacked.check_progress("too many clients");
    attacked.end();
}

async fn send_garbage_to_every_portal(client: &RawClient) {
    let mut random = fastrand::Rng::with_seed(11);
    let header = |count: u32, len: u32| {
        let head = LustreMsgV2 {
            lm_bufcount: count,
            lm_magic: wire::LUSTRE_MSG_MAGIC_V2,
            ..LustreMsgV2::default()
        };
        let lens = std::iter::repeat_n(len.to_le_bytes(), 40).flatten();
        head.to_bytes().iter().copied().chain(lens).collect::<Vec<u8>>()
    };
    let whole = Message::new(&client.statfs(), []).build();
    let mut messages = vec![
        Vec::new(),
        vec![0xff; 1 << 20],
        header(0, 0),
        header(1, u32::MAX),
        header(u32::MAX, 8),
        header(32, 1 << 20),
        header(2, 0xffff_fff8),
        whole[..whole.len() - 9].to_vec(),
    ];
    messages.push(std::iter::repeat_with(|| random.u8(..)).take(5000).collect());
    for portal in 0..64 {
        for message in &messages {
            let payload = Payload::from(message.clone());
            let xid = client.next_xid();
            client
                .lnet
                .put(client.to, portal, xid, 0, 0, payload, false)
                .await
                .unwrap();
        }
    }
    assert_eq!(client.status(MDS_REQUEST_PORTAL, client.statfs(), &[]).await, 0);
}

/// Sends every opcode, and some unknown ones, without buffers and with large ones, to every request
/// portal.
async fn send_every_opcode_to_every_portal(client: &RawClient) {
    let opcodes = (0..70).chain(100..112).chain(250..260).chain([
        400,
        403,
        601,
        602,
        700,
        900,
        901,
        1000,
        1101,
        u32::MAX,
    ]);
    let big = [Bytes::from(vec![0xff; 60_000])];
    for opc in opcodes {
        // Skip disconnects, after which the client may not send requests; other tests cover
        // connects.
        if matches!(
            opc,
            wire::MDS_DISCONNECT | wire::OST_DISCONNECT | wire::MGS_DISCONNECT
        ) {
            continue;
        }
        for portal in REQUEST_PORTALS {
            for bufs in [&[][..], &big] {
                let version = wire::format::service_version(opc);
                // Some requests are harmless and succeed. The server must answer each.
                client
                    .status(portal, body(opc, version, client.handle), bufs)
                    .await;
            }
        }
    }
    assert_eq!(client.status(MDS_REQUEST_PORTAL, client.statfs(), &[]).await, 0);
}

/// Connects like the MDT to its OSTs and like OSTs to the MDT, with their UUIDs and with an unknown
/// UUID.
async fn connect_as_false_servers(client: &RawClient) {
    let connect_status = |target: &'static str, uuid: &'static str, flags| async move {
        let (_, body, _) = connect_to(
            &client.lnet,
            client.to,
            target,
            uuid,
            (77, 1, true),
            connect_data(flags),
        )
        .await;
        body.pb_status
    };
    let names = [
        "nacre-MDT0000-mdtlov_UUID",
        "nacre-MDT0000-lwp-OST0000_UUID",
        "nobody",
    ];
    for flags in [OBD_CONNECT_MDS, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS_MDS] {
        for (target, uuid) in [MDT, OST].into_iter().flat_map(|t| names.map(|n| (t, n))) {
            assert_eq!(
                connect_status(target, uuid, flags).await,
                Errno::EAGAIN.status(),
                "{target} {uuid}"
            );
        }
    }
    // The MDT is connected to its OST, so its name is in use.
    assert_eq!(connect_status(OST, names[0], 0).await, Errno::EALREADY.status());
}

async fn use_handles_and_names_of_others(first: &RawClient, second: &RawClient) {
    let foreign_handle = body(MDS_STATFS, LUSTRE_MDS_VERSION, first.handle);
    assert_eq!(
        second.status(MDS_REQUEST_PORTAL, foreign_handle, &[]).await,
        Errno::ENOTCONN.status()
    );
    let unknown_handle = body(MDS_STATFS, LUSTRE_MDS_VERSION, 1);
    assert_eq!(
        second.status(MDS_REQUEST_PORTAL, unknown_handle, &[]).await,
        Errno::ENOTCONN.status()
    );
    let disconnect = body(wire::MDS_DISCONNECT, wire::LUSTRE_OBD_VERSION, first.handle);
    assert_eq!(
        second.status(MDS_REQUEST_PORTAL, disconnect, &[]).await,
        Errno::ENOTCONN.status()
    );
    // Connects with the other client's name: as the reconnecting client, as a new client, as a
    // server.
    for (flags, initial, errno) in [
        (0, false, Errno::EALREADY),
        (0, true, Errno::EALREADY),
        (OBD_CONNECT_MDS, true, Errno::EAGAIN),
    ] {
        let (_, reply, _) = connect_to(
            &second.lnet,
            second.to,
            MDT,
            "first",
            (6, 9, initial),
            connect_data(flags),
        )
        .await;
        assert_eq!(reply.pb_status, errno.status());
    }
    assert_eq!(
        first.status(MDS_REQUEST_PORTAL, first.statfs(), &[]).await,
        0,
        "the client's connection is intact"
    );
}

async fn use_slots_and_portals_not_granted(client: &RawClient) {
    let eproto = Errno::EPROTO.status();
    let high_tag = PtlrpcBody {
        pb_tag: 999,
        ..client.statfs()
    };
    assert_eq!(client.status(MDS_REQUEST_PORTAL, high_tag, &[]).await, eproto);
    let other_version = body(MDS_STATFS, LUSTRE_OST_VERSION, client.handle);
    assert_eq!(
        client.status(MDS_REQUEST_PORTAL, other_version, &[]).await,
        eproto
    );
    let read = body(OST_READ, LUSTRE_OST_VERSION, client.handle);
    assert_eq!(client.status(MDS_REQUEST_PORTAL, read, &[]).await, eproto);
    for opc in [LDLM_ENQUEUE, MDS_GETATTR, MDS_REINT] {
        let misplaced = body(opc, wire::format::service_version(opc), client.handle);
        assert_eq!(
            client.status(LDLM_CANCEL_REQUEST_PORTAL, misplaced, &[]).await,
            eproto,
            "{opc:#x} on the portal for lock cancels"
        );
    }
    // The server drops a request if its client does not wait for the answer.
    let without_timeout = PtlrpcBody {
        pb_timeout: 0,
        ..client.statfs()
    };
    let msg = Message::new(&without_timeout, []);
    client
        .lnet
        .put(
            client.to,
            MDS_REQUEST_PORTAL,
            client.next_xid(),
            0,
            0,
            msg.build().into(),
            false,
        )
        .await
        .unwrap();
    let long_timeout = PtlrpcBody {
        pb_timeout: u32::MAX,
        ..client.statfs()
    };
    assert_eq!(client.status(MDS_REQUEST_PORTAL, long_timeout, &[]).await, 0);
}

async fn repeat_requests(client: &RawClient, attacked: &AttackedFs) {
    // The client has no FID sequence, so its create fails; the resent request must fail as well.
    let rec = MdtRecCreate {
        cr_opcode: REINT_CREATE,
        cr_fid1: Fid::ROOT,
        cr_fid2: Fid::new(0x2_0000_0400, 77, 0),
        cr_mode: 0o040777,
        ..MdtRecCreate::default()
    };
    let bufs = [
        rec.to_bytes(),
        Bytes::new(),
        wire::nul_terminated(b"intruder"),
        Bytes::new(),
    ];
    let reint = body(MDS_REINT, LUSTRE_MDS_VERSION, client.handle);
    let resent = PtlrpcBody {
        pb_flags: MSG_RESENT,
        ..reint
    };
    let xid = client.next_xid();
    for body in [reint, resent, resent] {
        let msg = Message::new(&body, bufs.iter().cloned());
        assert!(
            client
                .request(MDS_REQUEST_PORTAL, xid, &msg)
                .await
                .unwrap()
                .pb_status
                < 0
        );
    }
    assert!(!attacked.mount.join("intruder").exists());
    // The client has acknowledged the reply, so the server must not send it again.
    let acknowledging = PtlrpcBody {
        pb_last_xid: client.next_xid(),
        ..client.statfs()
    };
    assert_eq!(client.status(MDS_REQUEST_PORTAL, acknowledging, &[]).await, 0);
    let msg = Message::new(&client.statfs(), []);
    let replayed = client.request(MDS_REQUEST_PORTAL, xid, &msg).await.unwrap();
    assert_eq!(replayed.pb_status, Errno::EPROTO.status());
}

async fn connect_too_many_clients(client: &RawClient) {
    let mut refusals = 0;
    for n in 0..CLIENTS {
        let uuid = format!("crowd-{n}");
        let (_, body, _) =
            connect_to(&client.lnet, client.to, MDT, &uuid, (5, 1, true), connect_data(0)).await;
        match body.pb_status {
            0 => assert_eq!(refusals, 0, "no connect succeeds above the limit"),
            status => {
                assert_eq!(status, Errno::EBUSY.status());
                refusals += 1;
            }
        }
    }
    assert!(refusals > 0);
    assert_eq!(client.status(MDS_REQUEST_PORTAL, client.statfs(), &[]).await, 0);
}
