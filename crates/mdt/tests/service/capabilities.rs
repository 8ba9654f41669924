//! Tests of the permissions in object capabilities.

use bytes::Bytes;
use mgc::CapaScope;
use wire::{
    CAPA_OPC_META_READ, CAPA_OPC_META_WRITE, CAPA_OPC_OSS_READ, CAPA_OPC_OSS_TRUNC, CAPA_OPC_OSS_WRITE,
    Errno, Fid, LustreCapa, MDS_ATTR_MODE, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_GETATTR, MDS_OPEN_BY_FID,
    MDS_OPEN_CREAT, MdtBody, MdtRecSetattr, OBD_MD_FLOSSCAPA, WireStruct, striping::PlainLayout,
};

use crate::fixture::Fixture;
use testbase::mds_client::Client;

/// Rights of any user.
const ANY_USER: u64 = CAPA_OPC_META_READ;
/// Rights of a user with read permission.
const READER: u64 = ANY_USER | CAPA_OPC_OSS_READ;
/// Rights of an owner without other permissions.
const OWNER: u64 = ANY_USER | CAPA_OPC_META_WRITE;
/// Rights of a user with write permission.
const WRITER: u64 = READER | CAPA_OPC_OSS_WRITE | CAPA_OPC_OSS_TRUNC | CAPA_OPC_META_WRITE;
/// UUID of the OST.
const TARGET: &str = "testfs-OST0000_UUID";

/// Creates a file of root with this mode and closes it; returns its FID and its object.
async fn create_file(c: &Client, name: &str, mode: u32) -> (Fid, Fid) {
    let created = c.open(Fid::ROOT, name, MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
    let layout = PlainLayout::parse(created.reply.buf(3)).unwrap();
    c.close(created.fid(), created.handle()).await.unwrap();
    chmod(c, created.fid(), mode).await;
    (created.fid(), layout.objects[0].l_ost_oi.fid())
}

async fn chmod(c: &Client, fid: Fid, mode: u32) {
    let rec = MdtRecSetattr {
        sa_fid: fid,
        sa_valid: MDS_ATTR_MODE,
        sa_mode: 0o100000 | mode,
        ..MdtRecSetattr::default()
    };
    c.setattr(rec, &[]).await.unwrap();
}

/// Requests a capability for the object in `request`, which is an earlier capability or an unsigned
/// one.
async fn request_capa(c: &Client, file: Fid, request: LustreCapa) -> Result<LustreCapa, Errno> {
    let (mbo_fsuid, mbo_fsgid, mbo_capability) = *c.creds.lock();
    let body = MdtBody {
        mbo_fid1: file,
        mbo_valid: OBD_MD_FLOSSCAPA,
        mbo_fsuid,
        mbo_fsgid,
        mbo_capability,
        mbo_suppgid: u32::MAX,
        ..MdtBody::default()
    };
    let reply = c
        .call(MDS_GETATTR, vec![body.to_bytes(), request.to_bytes()])
        .await?;
    assert_eq!(
        reply.get::<MdtBody>(1)?.mbo_valid & OBD_MD_FLOSSCAPA,
        OBD_MD_FLOSSCAPA
    );
    reply.get(5)
}

/// An unsigned capability for an object.
fn unsigned(object: Fid) -> LustreCapa {
    LustreCapa {
        lc_fid: object,
        ..LustreCapa::default()
    }
}

/// The rights in a capability that a client requests without presenting an earlier one.
async fn rights(c: &Client, (file, object): (Fid, Fid)) -> u64 {
    request_capa(c, file, unsigned(object)).await.unwrap().lc_opc
}

#[tokio::test]
async fn capability_combines_the_rights_of_the_user_and_of_open_files() {
    let f = Fixture::new(1).await;
    let (root, user) = (f.client().await, f.client().await);
    *user.creds.lock() = (5, 5, 0);
    for (mode, expected) in [
        (0o600, ANY_USER),
        (0o644, READER),
        (0o666, WRITER),
        (0o602, WRITER),
    ] {
        let created = create_file(&root, &format!("{mode:o}"), mode).await;
        assert_eq!(rights(&user, created).await, expected, "{mode:o}");
        assert_eq!(rights(&root, created).await, WRITER, "{mode:o}");
    }
    *root.creds.lock() = (0, 0, 0);
    let own = create_file(&root, "own", 0o000).await;
    assert_eq!(rights(&root, own).await, OWNER);
    // An open file keeps its rights after a change of mode.
    let (created, object) = create_file(&root, "open", 0o666).await;
    for (flags, expected) in [(MDS_FMODE_READ, READER), (MDS_FMODE_WRITE, WRITER)] {
        chmod(&root, created, 0o666).await;
        let open = user.open(created, "", MDS_OPEN_BY_FID | flags).await;
        assert_eq!(open.status, 0);
        chmod(&root, created, 0o600).await;
        assert_eq!(rights(&user, (created, object)).await, expected);
        // Open files of another client do not count.
        let third = f.client().await;
        *third.creds.lock() = (5, 5, 0);
        assert_eq!(rights(&third, (created, object)).await, ANY_USER);
        user.close(created, open.handle()).await.unwrap();
        assert_eq!(rights(&user, (created, object)).await, ANY_USER);
    }
}

#[tokio::test]
async fn renewed_capability_keeps_its_rights_for_its_client_only() {
    let f = Fixture::new(1).await;
    let (root, user) = (f.client().await, f.client().await);
    *user.creds.lock() = (5, 5, 0);
    let (created, object) = create_file(&root, "f", 0o666).await;
    let first = request_capa(&user, created, unsigned(object)).await.unwrap();
    chmod(&root, created, 0o600).await;
    let renewed = request_capa(&user, created, first).await.unwrap();
    assert_eq!(renewed.lc_opc, WRITER);
    let stranger = f.client().await;
    *stranger.creds.lock() = (5, 5, 0);
    let forged = LustreCapa {
        lc_opc: WRITER,
        lc_hmac: [7; 32],
        ..first
    };
    for (client, request) in [(&stranger, first), (&user, forged)] {
        assert_eq!(
            request_capa(client, created, request).await.unwrap().lc_opc,
            ANY_USER
        );
    }
    // Capabilities signed with a key that was rotated twice are invalid.
    for byte in [2, 3] {
        f.capa_keys.set(f.capa_keys.keys().rotated([byte; 32]));
    }
    assert_eq!(
        request_capa(&user, created, renewed).await.unwrap().lc_opc,
        ANY_USER
    );
}

#[tokio::test]
async fn capability_is_for_one_object_of_the_file_and_expires() {
    let f = Fixture::new(1).await;
    let c = f.client().await;
    let (created, object) = create_file(&c, "f", 0o644).await;
    let (_, others) = create_file(&c, "g", 0o644).await;
    for wrong_object in [others, Fid::new(object.f_seq, 999, 0), Fid::ZERO] {
        assert_eq!(
            request_capa(&c, created, unsigned(wrong_object)).await.err(),
            Some(Errno::ENOENT)
        );
    }
    for no_file in [Fid::ROOT, c.new_fid()] {
        assert_eq!(
            request_capa(&c, no_file, unsigned(object)).await.err(),
            Some(Errno::ENOENT)
        );
    }
    f.params.set("mdt.*.capa_timeout", "100").unwrap();
    let capa = request_capa(&c, created, unsigned(object)).await.unwrap();
    assert_eq!((capa.lc_timeout, capa.lc_fid), (100, object));
    let scope = CapaScope {
        target: TARGET,
        client: &c.uuid,
    };
    let expiry = u64::from(capa.lc_expiry);
    assert_eq!(f.capa_keys.check(scope, &capa, expiry), Ok(()));
    assert!(f.capa_keys.check(scope, &capa, expiry + 1).is_err());
    // A request without a capability is malformed.
    let body = MdtBody {
        mbo_fid1: created,
        mbo_valid: OBD_MD_FLOSSCAPA,
        ..MdtBody::default()
    };
    let malformed = c.call(MDS_GETATTR, vec![body.to_bytes(), Bytes::new()]).await;
    assert_eq!(malformed.err(), Some(Errno::EPROTO));
    // Without keys, as with a Lustre MGS, there are no capabilities.
    f.capa_keys.set(mgc::CapaKeys::default());
    assert_eq!(
        request_capa(&c, created, unsigned(object)).await.err(),
        Some(Errno::EOPNOTSUPP)
    );
}
