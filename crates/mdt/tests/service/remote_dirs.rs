//! Directories with their name on another MDT than their inode.

use std::sync::Arc;

use bytes::Bytes;
use mdt::layout::StripeRequest;
use testbase::mds_client::Client;
use wire::{
    Errno, Fid, LMV_USER_MAGIC, LmvUserMdV1, MDS_FMODE_READ, MDS_GETATTR, MDS_OPEN_CREAT, MDS_REINT, MdtBody,
    MdtRecCreate, MdtRecSetattr, OBD_MD_MDS, REINT_CREATE, WireStruct,
};

use crate::{fixture::wait_until, several_mdts::Mdts};

/// Two MDTs with a client of each.
struct Pair {
    mdts: Mdts,
    clients: [Arc<Client>; 2],
}

impl Pair {
    async fn start() -> Pair {
        let mdts = Mdts::start(2).await;
        let clients = [mdts.client(0).await, mdts.client(1).await];
        Pair { mdts, clients }
    }

    /// Creates a directory on MDT0001 with a name on MDT0000.
    async fn mkdir(&self, parent: Fid, name: &str) -> Result<Fid, Errno> {
        self.clients[1].make(parent, name, 0o040777, "").await
    }

    async fn rmdir(&self, parent: Fid, name: &str) -> Result<MdtBody, Errno> {
        self.clients[1].unlink(parent, name, true).await
    }

    async fn attrs(&self, mdt: usize, fid: Fid) -> Result<MdtBody, Errno> {
        let body = MdtBody {
            mbo_fid1: fid,
            ..MdtBody::default()
        };
        let reply = self.clients[mdt]
            .call(MDS_GETATTR, vec![body.to_bytes(), Bytes::new()])
            .await?;
        reply.get(1)
    }

    /// Waits until no MDT has locked a name for another one.
    async fn no_name_is_locked(&self) {
        wait_until(|| {
            let values = self.mdts.params.get("mdt.*.update_records");
            values.len() == 2 && values.iter().all(|(_, text)| text.contains("locked_names: 0"))
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_remote_directory_is_used_and_removed() {
    let p = Pair::start().await;
    let dir = p.mkdir(Fid::ROOT, "dir").await.unwrap();
    let at_name = p.clients[0].getattr(Fid::ROOT, "dir").await;
    assert_eq!(at_name.fid(), dir);
    let body: MdtBody = at_name.reply.get(2).unwrap();
    assert_ne!(body.mbo_valid & OBD_MD_MDS, 0);
    let opened = p.clients[0]
        .open(Fid::ROOT, "dir", MDS_FMODE_READ | MDS_OPEN_CREAT)
        .await;
    let body: MdtBody = opened.reply.get(2).unwrap();
    assert_eq!((opened.fid(), body.mbo_valid & OBD_MD_MDS), (dir, OBD_MD_MDS));
    assert_eq!(p.clients[0].readdir(Fid::ROOT).await, [".", "..", "dir"]);
    let links = async |mdt, fid| p.attrs(mdt, fid).await.unwrap().mbo_nlink;
    assert_eq!((links(0, Fid::ROOT).await, links(1, dir).await), (3, 2));
    let sub = p.clients[1].mkdir(dir, "sub").await;
    assert_eq!(p.clients[1].readdir(dir).await, [".", "..", "sub"]);
    assert_eq!(p.rmdir(Fid::ROOT, "dir").await, Err(Errno::ENOTEMPTY));
    p.clients[1].unlink(dir, "sub", true).await.unwrap();
    assert!(p.attrs(1, sub).await.is_err());
    p.rmdir(Fid::ROOT, "dir").await.unwrap();
    assert_eq!(p.clients[0].readdir(Fid::ROOT).await, [".", ".."]);
    assert_eq!(links(0, Fid::ROOT).await, 2);
    assert_eq!(p.attrs(1, dir).await, Err(Errno::ENOENT));
    p.no_name_is_locked().await;
}

#[tokio::test(start_paused = true)]
async fn directories_on_other_mdts_copy_default_layouts() {
    let p = Pair::start().await;
    let layout = StripeRequest {
        stripe_count: 1,
        stripe_size: 1 << 20,
        ..StripeRequest::default()
    };
    let layout = layout.to_default_layout();
    let set = async |mdt: usize, sa_fid: Fid| {
        let rec = MdtRecSetattr {
            sa_fid,
            ..MdtRecSetattr::default()
        };
        p.clients[mdt].setattr(rec, &layout).await.unwrap();
    };
    let get = async |fid| p.clients[1].getxattr(fid, "trusted.lov").await;
    let parent = p.clients[0].mkdir(Fid::ROOT, "parent").await;
    let none = p.mkdir(Fid::ROOT, "none").await.unwrap();
    assert_eq!(get(none).await.err(), Some(Errno::ENODATA));
    set(0, Fid::ROOT).await;
    let in_root = p.mkdir(Fid::ROOT, "in root").await.unwrap();
    assert_eq!(get(in_root).await.unwrap(), layout);
    // Another directory than the root has its own.
    let below = p.mkdir(parent, "none").await.unwrap();
    assert_eq!(get(below).await.err(), Some(Errno::ENODATA));
    set(0, parent).await;
    let below = p.mkdir(parent, "below").await.unwrap();
    assert_eq!(get(below).await.unwrap(), layout);
}

#[tokio::test(start_paused = true)]
async fn a_failed_operation_leaves_no_name_locked() {
    let p = Pair::start().await;
    let dir = p.mkdir(Fid::ROOT, "dir").await.unwrap();
    p.clients[0].make(Fid::ROOT, "file", 0o010644, "").await.unwrap();
    assert_eq!(p.mkdir(Fid::ROOT, "dir").await, Err(Errno::EEXIST));
    assert_eq!(p.mkdir(Fid::ROOT, "file").await, Err(Errno::EEXIST));
    assert_eq!(p.rmdir(Fid::ROOT, "missing").await, Err(Errno::ENOENT));
    assert_eq!(p.rmdir(Fid::ROOT, "file").await, Err(Errno::EREMOTE));
    assert_eq!(
        p.clients[1].unlink(Fid::ROOT, "dir", false).await,
        Err(Errno::EISDIR)
    );
    let file = p.clients[0].make(Fid::ROOT, "other", 0o010644, "").await.unwrap();
    assert_eq!(p.mkdir(file, "x").await, Err(Errno::ENOTDIR));
    p.no_name_is_locked().await;
    // The names are free.
    p.rmdir(Fid::ROOT, "dir").await.unwrap();
    p.clients[0].unlink(Fid::ROOT, "file", false).await.unwrap();
    assert_eq!(p.attrs(1, dir).await, Err(Errno::ENOENT));
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_request_ends_and_leaves_no_name_locked() {
    let p = Pair::start().await;
    for name in ["a", "b"] {
        let mkdir = p.mkdir(Fid::ROOT, name);
        // The request has left, and its caller goes away.
        assert!(futures_poll_once(mkdir).await.is_none());
    }
    let [_, client] = &p.clients;
    client.disconnect().await;
    p.no_name_is_locked().await;
    let names = p.clients[0].readdir(Fid::ROOT).await;
    for name in names.iter().filter(|name| name.len() == 1 && *name != ".") {
        assert_eq!(
            p.clients[0].unlink(Fid::ROOT, name, true).await,
            Err(Errno::EREMOTE)
        );
    }
}

/// Polls a future once.
async fn futures_poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::ready(()) => None,
    }
}

#[tokio::test(start_paused = true)]
async fn the_name_is_removed_by_the_mdt_of_the_directory() {
    let p = Pair::start().await;
    p.mkdir(Fid::ROOT, "dir").await.unwrap();
    let at_name = &p.clients[0];
    assert_eq!(at_name.unlink(Fid::ROOT, "dir", true).await, Err(Errno::EREMOTE));
    assert_eq!(at_name.unlink(Fid::ROOT, "dir", false).await, Err(Errno::EISDIR));
    p.no_name_is_locked().await;
}

#[tokio::test(start_paused = true)]
async fn renames_inside_a_remote_directory_work() {
    let p = Pair::start().await;
    let dir = p.mkdir(Fid::ROOT, "dir").await.unwrap();
    let client = &p.clients[1];
    let (a, b) = (client.mkdir(dir, "a").await, client.mkdir(dir, "b").await);
    let moved = client.mkdir(a, "moved").await;
    client.rename((a, "moved"), (b, "moved")).await.unwrap();
    assert_eq!(client.getattr(b, "moved").await.fid(), moved);
    let below_itself = client.rename((dir, "b"), (moved, "b")).await;
    assert_eq!(below_itself.err(), Some(Errno::EINVAL));
    // A directory of MDT0000 inside of it: only MDT0001 knows what is above.
    let inner = p.clients[0].make(dir, "inner", 0o040777, "").await.unwrap();
    let outer = p.clients[0].mkdir(Fid::ROOT, "outer").await;
    p.clients[0].mkdir(outer, "d").await;
    p.clients[0].rename((outer, "d"), (inner, "d")).await.unwrap();
    assert_eq!(p.clients[0].readdir(inner).await, [".", "..", "d"]);
}

#[tokio::test(start_paused = true)]
async fn administrators_and_a_group_may_choose_the_mdt() {
    let p = Pair::start().await;
    let client = &p.clients[1];
    let mkdir = async |name: &str, gid, is_requested: bool| {
        let rec = MdtRecCreate {
            cr_opcode: REINT_CREATE,
            cr_fsuid: 500,
            cr_fsgid: gid,
            cr_fid1: Fid::ROOT,
            cr_fid2: client.new_fid(),
            cr_mode: 0o040755,
            ..MdtRecCreate::default()
        };
        let layout = LmvUserMdV1 {
            lum_magic: LMV_USER_MAGIC,
            lum_stripe_count: 1,
            lum_stripe_offset: 1,
            ..LmvUserMdV1::default()
        };
        let layout = if is_requested {
            layout.to_bytes()
        } else {
            Bytes::new()
        };
        let bufs = vec![
            rec.to_bytes(),
            Bytes::new(),
            wire::nul_terminated(name.as_bytes()),
            layout,
        ];
        client.modify(MDS_REINT, bufs).await.err()
    };
    let open_root = wire::MdtRecSetattr {
        sa_fid: Fid::ROOT,
        sa_valid: wire::MDS_ATTR_MODE,
        sa_mode: 0o777,
        ..Default::default()
    };
    p.clients[0].setattr(open_root, &[]).await.unwrap();
    assert_eq!(mkdir("a", 7, true).await, Some(Errno::EPERM));
    assert_eq!(mkdir("b", 7, false).await, None, "a default layout chooses");
    let set = |name: &str, value: &str| {
        p.mdts.params.set(&format!("mdt.*.{name}"), value).unwrap();
    };
    set("enable_remote_dir_gid", "7");
    assert_eq!(mkdir("c", 7, true).await, None);
    assert_eq!(mkdir("d", 8, true).await, Some(Errno::EPERM));
    set("enable_remote_dir_gid", "-1");
    assert_eq!(mkdir("d", 8, true).await, None);
    set("enable_remote_dir", "0");
    assert_eq!(mkdir("e", 8, true).await, Some(Errno::EPERM));
    assert_eq!(
        p.mkdir(Fid::ROOT, "f").await,
        Err(Errno::EPERM),
        "also for administrators"
    );
}

#[tokio::test(start_paused = true)]
async fn records_are_forgotten_when_both_mdts_have_them_on_disk() {
    let mut p = Pair::start().await;
    let records = |p: &Pair, text: &str| {
        let values = p.mdts.params.get("mdt.*.update_records");
        values.iter().filter(|(_, value)| value.contains(text)).count()
    };
    p.mkdir(Fid::ROOT, "a").await.unwrap();
    assert_eq!(records(&p, "records: 1\n"), 2);
    wait_until(|| records(&p, "records: 0\n") == 2).await;
    // Operations go on after restarts of both, in either order.
    for mdt in [0, 1] {
        p.mdts.stop_mdt(mdt).await;
        p.mdts.start_mdt(mdt).await.unwrap();
        p.mdts.wait_connected().await;
        p.clients = [p.mdts.client(0).await, p.mdts.client(1).await];
        p.mkdir(Fid::ROOT, &format!("b{mdt}")).await.unwrap();
    }
    wait_until(|| records(&p, "records: 0\n") == 2).await;
    assert_eq!(p.clients[0].readdir(Fid::ROOT).await.len(), 5);
}
