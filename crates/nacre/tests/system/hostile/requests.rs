//! Requests of a client that omits all checks of its own: permissions, names, FIDs, flags, lengths,
//! and promised bulk data.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cpt::CptTable;
use rpc::{Import, ImportConfig, ImportKind, Ptlrpc, Request, RpcConfig};
use testbase::rpc_node;
use tokio::task::JoinHandle;
use wire::{
    Errno, Fid, MDS_ATTR_MODE, MDS_ATTR_SIZE, MDS_ATTR_UID, MDS_FMODE_EXEC, MDS_FMODE_READ, MDS_FMODE_WRITE,
    MDS_OPEN_BY_FID, MDS_OPEN_CREAT, MDS_OPEN_HAS_EA, MDS_READPAGE, MDS_REINT, MdtBody, MdtRecCreate,
    MdtRecSetattr, Nid, NiobufRemote, OBD_CONNECT_AT, OBD_CONNECT_BRW_SIZE, OBD_CONNECT_FULL20, OST_GETATTR,
    OST_READ, OST_WRITE, ObdConnectData, ObdIoobj, Obdo, OstBody, OstId, REINT_CREATE, REINT_SETATTR,
    WireStruct, nul_terminated,
};

use crate::hostile::attacked_fs::{AttackedFs, MDT, OST};
use testbase::mds_client::Client;
use testbase::sockets::{addresses, node};

/// Credentials of an unprivileged user that claims all capabilities.
const USER: (u32, u32, u32) = (4711, 4712, u32::MAX);
const ROOT: (u32, u32, u32) = (0, 0, u32::MAX);
/// Concurrent bulk requests without data, more than a service handles at once.
const REQUESTS_WITHOUT_BULK: usize = 300;
/// Padding of each of these requests, bytes.
const PADDING: usize = 900_000;

async fn untrusted_node() -> Arc<Ptlrpc> {
    let (_, nid) = addresses();
    Ptlrpc::start(node(nid).await, CptTable::single_current(), RpcConfig::default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_without_checks_gains_no_access() {
    let attacked = AttackedFs::new();
    fs::write(attacked.mount.join("secret"), "secret").unwrap();
    fs::create_dir(attacked.mount.join("private")).unwrap();
    fs::write(attacked.mount.join("private/inside"), "secret").unwrap();
    for (name, mode) in [("secret", 0o600), ("private", 0o700), ("private/inside", 0o600)] {
        fs::set_permissions(attacked.mount.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let rpc = untrusted_node().await;
    let client = Client::connect_to(&rpc, attacked.nid, MDT).await;
    attempt_forbidden_access(&client).await;
    attacked.check_progress("a user without rights");
    send_illegal_names_and_fids(&client).await;
    attacked.check_progress("illegal names");
    send_all_flags(&client).await;
    attacked.check_progress("meaningless flags");
    send_long_buffers(&client).await;
    attacked.check_progress("buffers that are too long");
    let other = Client::connect_to(&rpc, attacked.nid, MDT).await;
    close_open_files_of_others(&client, &other).await;
    attacked.check_progress("open files of others");
    let read = |name: &str| fs::read_to_string(attacked.mount.join(name)).unwrap();
    assert_eq!(
        (read("secret"), read("private/inside")),
        ("secret".into(), "secret".into())
    );
    let mode = fs::metadata(attacked.mount.join("secret"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    let pending_transfers = send_false_transfers(&rpc, attacked.nid).await;
    attacked.check_progress("while transfers fail");
    for transfer in pending_transfers {
        assert!(transfer.await.unwrap());
    }
    attacked.wait_for_log("bulk transfer failed");
    attacked.check_progress("transfers that fail");
    attacked.end();
}

fn setattr_record(fid: Fid, valid: u64) -> MdtRecSetattr {
    MdtRecSetattr {
        sa_fid: fid,
        sa_valid: valid,
        sa_mode: 0o104777,
        sa_uid: USER.0,
        ..MdtRecSetattr::default()
    }
}

async fn attempt_forbidden_access(client: &Client) {
    // The client looks the files up as root; from then on, the user knows their FIDs.
    let secret = client.getattr(Fid::ROOT, "secret").await.fid();
    let private = client.getattr(Fid::ROOT, "private").await.fid();
    let inside = client.getattr(private, "inside").await.fid();
    *client.creds.lock() = USER;
    let (eacces, eperm) = (Errno::EACCES, Errno::EPERM);
    for fid in [secret, private, inside] {
        assert_eq!(
            client
                .setattr(setattr_record(fid, MDS_ATTR_MODE), &[])
                .await
                .unwrap_err(),
            eperm
        );
        assert_eq!(
            client
                .setattr(setattr_record(fid, MDS_ATTR_UID), &[])
                .await
                .unwrap_err(),
            eperm
        );
        assert_eq!(client.setxattr(fid, "user.a", b"b").await.unwrap_err(), eacces);
    }
    for fid in [secret, inside] {
        assert_eq!(
            client
                .setattr(setattr_record(fid, MDS_ATTR_SIZE), &[])
                .await
                .unwrap_err(),
            eacces
        );
        for mode in [MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_FMODE_EXEC] {
            let open = client.open(fid, "", MDS_OPEN_BY_FID | mode).await;
            assert_eq!((open.status, open.handle()), (eacces.status(), 0), "{mode:#x}");
        }
    }
    assert_eq!(
        client.unlink(Fid::ROOT, "secret", false).await.unwrap_err(),
        eacces
    );
    assert_eq!(client.unlink(private, "inside", false).await.unwrap_err(), eacces);
    assert_eq!(client.link(secret, private, "more").await.unwrap_err(), eacces);
    assert_eq!(
        client.make(private, "mine", 0o040777, "").await.unwrap_err(),
        eacces
    );
    for (src, dst) in [
        ((Fid::ROOT, "secret"), (Fid::ROOT, "mine")),
        ((Fid::ROOT, "secret"), (private, "mine")),
        ((private, "inside"), (Fid::ROOT, "mine")),
    ] {
        assert_eq!(client.rename(src, dst).await.unwrap_err(), eacces);
    }
    let lookup = client.getattr(private, "inside").await;
    assert_eq!((lookup.status, lookup.fid()), (eacces.status(), Fid::ZERO));
    *client.creds.lock() = ROOT;
}

async fn create_dir(client: &Client, fid: Fid, name: &[u8]) -> Result<(), Errno> {
    let rec = MdtRecCreate {
        cr_opcode: REINT_CREATE,
        cr_fid1: Fid::ROOT,
        cr_fid2: fid,
        cr_mode: 0o040777,
        ..MdtRecCreate::default()
    };
    let (empty, name) = (Bytes::new(), Bytes::copy_from_slice(name));
    let bufs = vec![rec.to_bytes(), empty.clone(), name, empty];
    client.modify(MDS_REINT, bufs).await.map(drop)
}

async fn send_illegal_names_and_fids(client: &Client) {
    let long = vec![b'x'; 60_000];
    for name in [&b"a/b\0"[..], b"/\0", b"", b"\0", b".\0", b"..\0", &long] {
        let error = create_dir(client, client.new_fid(), name).await.unwrap_err();
        assert!([Errno::EINVAL, Errno::ENAMETOOLONG].contains(&error), "{error}");
    }
    for name in ["a/b", "..", ".", ""] {
        assert!(client.unlink(Fid::ROOT, name, true).await.is_err(), "{name}");
        assert!(
            client
                .rename((Fid::ROOT, "private"), (Fid::ROOT, name))
                .await
                .is_err(),
            "{name}"
        );
        assert!(
            client
                .rename((Fid::ROOT, name), (Fid::ROOT, "private"))
                .await
                .is_err(),
            "{name}"
        );
    }
    for fid in [
        Fid::ROOT,
        Fid::ZERO,
        Fid::new(client.seq + 5, 1, 0),
        Fid::new(0x2_0000_0400, 2, 0),
        Fid::new(u64::MAX, u32::MAX, u32::MAX),
        Fid::new(1, 1, 0),
    ] {
        let error = create_dir(client, fid, b"x\0").await.unwrap_err();
        assert!([Errno::EPERM, Errno::EINVAL].contains(&error), "{fid}: {error}");
    }
}

/// Sends opens, record opcodes and attributes with all kinds of flags. Most may succeed or fail;
/// the server must answer each request.
async fn send_all_flags(client: &Client) {
    let all = (0..64)
        .map(|bit| 1 << bit)
        .chain([u64::MAX, MDS_OPEN_CREAT | 3 << 40, !MDS_OPEN_CREAT]);
    for flags in all {
        let open = client.open(Fid::ROOT, "flags", flags).await;
        if open.handle() != 0 {
            let _ = client.close(open.fid(), open.handle()).await;
        }
    }
    for opcode in (0..16).chain([u32::MAX]) {
        let rec = MdtRecCreate {
            cr_opcode: opcode,
            cr_fid1: Fid::ROOT,
            ..MdtRecCreate::default()
        };
        let bufs = vec![
            rec.to_bytes(),
            Bytes::new(),
            nul_terminated(b"nothing"),
            Bytes::new(),
        ];
        // A setattr without changes is permitted for everybody.
        let result = client.modify(MDS_REINT, bufs).await;
        assert!(result.is_err() || opcode == REINT_SETATTR, "{opcode}");
    }
    let _ = client
        .setattr(setattr_record(Fid::ROOT, u64::MAX), &[0xff; 100])
        .await;
    // Restore the mode, since another client works below the root.
    let mode = MdtRecSetattr {
        sa_mode: 0o040755,
        sa_uid: 0,
        ..setattr_record(Fid::ROOT, MDS_ATTR_MODE | MDS_ATTR_UID)
    };
    client.setattr(mode, &[]).await.unwrap();
}

async fn send_long_buffers(client: &Client) {
    let long_value = vec![0xff; 900_000];
    let secret = client.getattr(Fid::ROOT, "secret").await.fid();
    assert!(client.setxattr(secret, "user.a", &long_value).await.is_err());
    let name = format!("user.{}", "x".repeat(60_000));
    assert!(client.setxattr(secret, &name, b"").await.is_err());
    let with_layout = MDS_OPEN_CREAT | MDS_OPEN_HAS_EA | MDS_FMODE_WRITE;
    let layout = client
        .open_with(Fid::ROOT, "long", with_layout, &long_value)
        .await;
    assert!(layout.status < 0);
    let target = "x".repeat(900_000);
    assert!(client.make(Fid::ROOT, "link", 0o120777, &target).await.is_err());
    for opc in [
        wire::LDLM_ENQUEUE,
        MDS_REINT,
        wire::MDS_GETATTR,
        wire::MDS_GETXATTR,
        wire::MDS_CLOSE,
    ] {
        for count in [1, 31] {
            let bufs = vec![Bytes::from(vec![0xff; 900_000 / count]); count];
            assert!(client.modify(opc, bufs).await.is_err(), "{opc:#x}, {count}");
        }
    }
}

async fn close_open_files_of_others(owner: &Client, other_client: &Client) {
    let open = owner
        .open(Fid::ROOT, "open", MDS_OPEN_CREAT | MDS_FMODE_WRITE)
        .await;
    for handle in [open.handle(), 0, u64::MAX] {
        assert_eq!(
            other_client.close(open.fid(), handle).await.unwrap_err(),
            Errno::ESTALE
        );
    }
    owner.close(open.fid(), open.handle()).await.unwrap();
    owner.unlink(Fid::ROOT, "open", false).await.unwrap();
}

/// Sends reads and writes of an object with false lengths, and requests whose bulk transfer cannot
/// succeed. Returns the requests in progress; each yields whether it failed.
async fn send_false_transfers(rpc: &Arc<Ptlrpc>, server: Nid) -> Vec<JoinHandle<bool>> {
    let flags = OBD_CONNECT_FULL20 | OBD_CONNECT_AT | OBD_CONNECT_BRW_SIZE;
    let config = ImportConfig {
        nids: vec![server],
        connect: ObdConnectData {
            ocd_connect_flags: flags,
            ocd_brw_size: 1 << 20,
            ..ObdConnectData::default()
        },
        max_rpcs_in_flight: 256,
        ..rpc_node::import_config(OST, ImportKind::Osc, Arc::<rpc_node::RecordingOwner>::default())
    };
    let import = Import::new(rpc, config);
    import.connect().await.unwrap();
    let mut object = None;
    for seq in [0x2_0000_0400, 0x2_4000_0400, 0x2_8000_0400] {
        // The bytes of this object id are those of the FID `[seq:0x2:0x0]`.
        let oi = OstId {
            oi_id: seq,
            oi_seq: 2,
        };
        let body = OstBody {
            oa: Obdo {
                o_oi: oi,
                ..Obdo::default()
            },
        };
        let result = import
            .call(Request::new(OST_GETATTR, vec![body.to_bytes()]))
            .await;
        object = object.or(result.is_ok().then_some(oi));
    }
    let object = object.expect("the OST has precreated an object");
    let request_for = |opc, bufcnt, max_brw, ranges: &[(u64, u32)]| {
        let body = OstBody {
            oa: Obdo {
                o_oi: object,
                ..Obdo::default()
            },
        };
        let io = ObdIoobj {
            ioo_oid: object,
            ioo_max_brw: max_brw,
            ioo_bufcnt: bufcnt,
        };
        let range = |&(rnb_offset, rnb_len): &(u64, u32)| {
            let range = NiobufRemote {
                rnb_offset,
                rnb_len,
                rnb_flags: 0,
            };
            range.to_bytes().to_vec()
        };
        let ranges: Vec<u8> = ranges.iter().flat_map(range).collect();
        let req = Request::new(
            opc,
            vec![body.to_bytes(), io.to_bytes(), ranges.into(), Bytes::new()],
        );
        Request {
            no_resend: true,
            limited: false,
            timeout: Some(Duration::from_secs(60)),
            ..req
        }
    };
    for opc in [OST_READ, OST_WRITE] {
        for (bufcnt, max_brw, ranges) in [
            (1, 0, &[(0, u32::MAX)][..]),
            (1, 0, &[(0, 0)]),
            (1, 0, &[(u64::MAX, 4096)]),
            (1, u32::MAX, &[(0, 4096)]),
            (0, 0, &[]),
            (u32::MAX, 0, &[(0, 4096)]),
            (1000, 0, &[(0, 4096)]),
            (2, 0, &[(8192, 4096), (0, 4096)]),
            (2, 0, &[(0, 8192), (4096, 4096)]),
            (2, 0, &[(0, 1 << 20), (1 << 20, 1 << 20)]),
        ] {
            let result = import.call(request_for(opc, bufcnt, max_brw, ranges)).await;
            assert!(result.is_err(), "{opc} {bufcnt} {max_brw:#x} {ranges:?}");
        }
    }
    // Requests that promise data and never send it, and reads into memory that does not exist. The
    // server does not answer them, so the client waits only briefly.
    let unanswered = |req| Request {
        no_resend: true,
        timeout: Some(Duration::from_secs(5)),
        ..req
    };
    let padding = Bytes::from(vec![0; PADDING]);
    let pending = (0..REQUESTS_WITHOUT_BULK).map(|n| {
        let opc = if n % 4 == 0 { OST_READ } else { OST_WRITE };
        let import = import.clone();
        let mut req = unanswered(request_for(opc, 1, 0, &[(0, 4096)]));
        req.bufs.push(padding.clone());
        tokio::spawn(async move { import.call(req).await.is_err() })
    });
    let pending = pending.collect();
    let page = MdtBody {
        mbo_fid1: Fid::ROOT,
        mbo_nlink: u32::MAX,
        mbo_mode: 3,
        ..MdtBody::default()
    };
    let client = Client::connect_to(rpc, server, MDT).await;
    let req = unanswered(Request::new(MDS_READPAGE, vec![page.to_bytes(), Bytes::new()]));
    assert!(client.import.call(req).await.is_err());
    pending
}
