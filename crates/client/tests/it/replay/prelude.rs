//! Keeps the OST allocation of this run in step with the captured one.
//!
//! Both allocate the OSTs in turn, but some allocations were not captured. So extra files are
//! created until it is the turn of the right OST.

use crate::replay::servers::{FSNAME, Servers, captured, here};
use client::{Client, Cred, MountOptions, OpenFlags};
use std::sync::Arc;
use wire::Fid;
use wire::striping::LovLayout;

/// The directory of the extra files.
pub(crate) const ASIDE: &str = "aside";

/// A mount with a directory that no captured client uses.
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

    /// Makes the OST of this index the next one.
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
