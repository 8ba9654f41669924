//! Requests that Nacre refuses or does not implement. Unimplemented requests of Lustre clients
//! (HSM, quotas, changelogs, migration) fail with `EOPNOTSUPP`, the log names the client, and the
//! file system keeps working.

use bytes::Bytes;
use wire::{
    Errno, Fid, LLOG_ORIGIN_HANDLE_CREATE, MDS_CLOSE_LAYOUT_MERGE, MDS_FMODE_READ, MDS_FMODE_WRITE,
    MDS_HSM_ACTION, MDS_HSM_CT_REGISTER, MDS_HSM_CT_UNREGISTER, MDS_HSM_PROGRESS, MDS_HSM_REQUEST,
    MDS_OPEN_CREAT, MDS_QUOTACTL, MDS_REINT, MDS_SET_INFO, MdtRecCreate, MdtRecSetattr, REINT_MIGRATE,
    REINT_RESYNC, WireStruct,
};

use rpc::{ConnectRequest, Role, Target};
use wire::{
    LU_SEQ_RANGE_OST, LuSeqRange, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS, ObdConnectData, SEQ_ALLOC_SUPER,
    SEQ_QUERY,
};

use crate::fixture::Fixture;
use testbase::{Log, mds_client::MDT};

#[tokio::test]
async fn super_sequences_are_for_targets_of_the_file_system_only() {
    let log = Log::start();
    let f = Fixture::new(1).await;
    let admit = |peer: &str, flags| {
        let data = ObdConnectData {
            ocd_connect_flags: flags,
            ..ObdConnectData::default()
        };
        f.mdt.admit(&ConnectRequest {
            client_uuid: "testfs-MDT0000-lwp-OST0000_UUID".into(),
            peer: peer.parse().unwrap(),
            reconnects: false,
            recovers: false,
            data,
        })
    };
    for claim in [OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS] {
        assert_eq!(admit("10.0.0.9@tcp", claim), Err(Errno::EAGAIN));
        assert_eq!(admit("0@lo", claim), Ok(Role::Server));
    }
    assert_eq!(admit("10.0.0.9@tcp", 0), Ok(Role::Client));
    let lines = log.lines("connect as a server refused");
    assert!(
        lines[0].contains("10.0.0.9@tcp") && lines[0].contains(MDT),
        "{lines:?}"
    );
    let c = f.client().await;
    let request = LuSeqRange {
        lsr_flags: LU_SEQ_RANGE_OST,
        ..LuSeqRange::default()
    };
    let opc = SEQ_ALLOC_SUPER.to_le_bytes().to_vec().into();
    let refused = c.call(SEQ_QUERY, vec![opc, request.to_bytes()]).await;
    assert_eq!(refused.map(|r| r.status), Err(Errno::EPERM));
}

#[tokio::test]
async fn unimplemented_operations_fail_and_are_logged() {
    let log = Log::start();
    let f = Fixture::new(0).await;
    let c = f.client().await;
    let requests = [
        (MDS_QUOTACTL, "MDS_QUOTACTL"),
        (MDS_HSM_REQUEST, "MDS_HSM_REQUEST"),
        (MDS_HSM_ACTION, "MDS_HSM_ACTION"),
        (MDS_HSM_PROGRESS, "MDS_HSM_PROGRESS"),
        (MDS_HSM_CT_REGISTER, "MDS_HSM_CT_REGISTER"),
        (MDS_HSM_CT_UNREGISTER, "MDS_HSM_CT_UNREGISTER"),
        // Clients clear a changelog by MDS_SET_INFO, and read it by LLOG_ORIGIN_HANDLE_CREATE.
        (MDS_SET_INFO, "SET_INFO"),
        (LLOG_ORIGIN_HANDLE_CREATE, "LLOG_ORIGIN_HANDLE_CREATE"),
    ];
    // The log accepts ten lines in ten seconds from each place in the code.
    let mut lines_logged = 0;
    for (opc, name) in requests {
        let refused = c.call(opc, vec![Bytes::from_static(&[0; 216])]).await;
        assert_eq!(refused.map(|r| r.status), Err(Errno::EOPNOTSUPP), "{name}");
        let lines = log.lines(name);
        lines_logged += lines.len();
        for line in lines {
            assert!(
                line.contains("peer=0@lo") && line.contains("testfs-MDT0000_UUID"),
                "{line}"
            );
        }
    }
    assert!((7..=10).contains(&lines_logged), "{lines_logged} lines");
    c.mkdir(Fid::ROOT, "d").await;
}

#[tokio::test]
async fn read_only_mount_changes_nothing_until_remounted() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "f", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    c.close(created.fid(), created.handle()).await.unwrap();
    // The request of `mount -o remount,ro` (1) and `rw` (0).
    let remount = async |read_only: u32| {
        let key = Bytes::from_static(wire::KEY_READ_ONLY.as_bytes());
        let value = Bytes::copy_from_slice(&read_only.to_le_bytes());
        c.call(MDS_SET_INFO, vec![key, value]).await.map(drop)
    };
    remount(1).await.unwrap();
    let opened = c.open(Fid::ROOT, "f", MDS_FMODE_WRITE).await;
    assert_eq!(opened.status, Errno::EROFS.status());
    assert_eq!(c.unlink(Fid::ROOT, "f", false).await, Err(Errno::EROFS));
    let read = c.open(Fid::ROOT, "f", MDS_FMODE_READ).await;
    assert_eq!(read.status, 0);
    let rec = MdtRecSetattr {
        sa_fid: created.fid(),
        sa_valid: wire::MDS_ATTR_ATIME,
        sa_atime: 1 << 40,
        ..MdtRecSetattr::default()
    };
    c.close_with(read.handle(), rec).await.unwrap();
    assert_ne!(c.getattr(Fid::ROOT, "f").await.body.mbo_atime, 1 << 40);
    remount(0).await.unwrap();
    c.unlink(Fid::ROOT, "f", false).await.unwrap();
    let without_value = c
        .call(MDS_SET_INFO, vec![Bytes::from_static(b"read-only"), Bytes::new()])
        .await;
    assert_eq!(without_value.map(drop), Err(Errno::EPROTO));
}

#[tokio::test]
async fn migrate_and_resync_are_unsupported() {
    let f = Fixture::new(0).await;
    let c = f.client().await;
    c.mkdir(Fid::ROOT, "d").await;
    for cr_opcode in [REINT_MIGRATE, REINT_RESYNC] {
        let rec = MdtRecCreate {
            cr_opcode,
            cr_fid1: Fid::ROOT,
            cr_fid2: c.new_fid(),
            ..MdtRecCreate::default()
        };
        let bufs = vec![rec.to_bytes(), Bytes::new(), wire::nul_terminated(b"d")];
        let refused = c.modify(MDS_REINT, bufs).await;
        assert_eq!(refused.map(|r| r.status), Err(Errno::EOPNOTSUPP));
    }
    assert_eq!(c.getattr(Fid::ROOT, "d").await.status, 0);
}

#[tokio::test]
async fn close_with_a_layout_merge_only_closes() {
    let log = Log::start();
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let created = c.open(Fid::ROOT, "f", MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    let merge = MdtRecSetattr {
        sa_fid: created.fid(),
        sa_bias: MDS_CLOSE_LAYOUT_MERGE,
        ..MdtRecSetattr::default()
    };
    let closed = c.close_with(created.handle(), merge).await;
    assert_eq!(closed.map(|r| r.status), Err(Errno::EOPNOTSUPP));
    assert_eq!(log.lines("MDS_CLOSE intent unsupported").len(), 1);
    let again = c.close(created.fid(), created.handle()).await;
    assert_eq!(again.map(|r| r.status), Err(Errno::ESTALE), "already closed");
    c.unlink(Fid::ROOT, "f", false).await.unwrap();
}
