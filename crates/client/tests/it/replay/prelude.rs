//! What keeps the life here in step with the one that was captured: which OST the next file goes to.
//!
//! Both take the OSTs in turn, but not everything that took a turn was captured. So files are made aside until it is the
//! turn of the right one.

use crate::replay::servers::{FSNAME, Servers, captured, here};
use client::{Client, Cred, MountOptions, OpenFlags};
use std::sync::Arc;
use wire::Fid;
use wire::striping::LovLayout;

/// Where files are made aside.
pub(crate) const ASIDE: &str = "aside";

/// A mount of Nacre's own, with a directory that no captured client looks into.
pub(crate) struct Aside {
    client: Arc<Client>,
    dir: Fid,
    made: usize,
}

impl Aside {
    pub(crate) async fn start(servers: &Servers) -> Aside {
        let options = MountOptions::new(vec![here(captured(11))], FSNAME, 7);
        let client = Client::mount(servers.first(), options).await.unwrap();
        let cred = Cred::root();
        let made = client.mkdir(&cred, client.root(), ASIDE.as_bytes(), 0o700);
        let dir = made.await.unwrap().attr.fid;
        Aside { client, dir, made: 0 }
    }

    /// The next file goes to the OST of this index.
    pub(crate) async fn turn_of(&mut self, servers: &Servers, ost: u64) {
        loop {
            servers.osts_ready().await;
            self.made += 1;
            let (name, cred) = (self.made.to_string(), Cred::root());
            let flags = OpenFlags::default();
            let made = self.client.create(&cred, self.dir, name.as_bytes(), 0o600, flags);
            let (found, file) = made.await.unwrap();
            self.client.release(&file).await.unwrap();
            let layout = self
                .client
                .getxattr(&cred, found.attr.fid, b"lustre.lov")
                .await
                .unwrap();
            let LovLayout::Plain(layout) = LovLayout::parse(&layout).unwrap() else {
                panic!()
            };
            if u64::from(layout.objects[0].l_ost_idx) != ost {
                servers.osts_ready().await;
                return;
            }
        }
    }

    pub(crate) async fn end(self) {
        self.client.umount().await;
    }
}
