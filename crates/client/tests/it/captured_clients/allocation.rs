//! Makes this run allocate each file on the same OST as in the captures.
//!
//! Lustre's and Nacre's MDT allocate the OSTs in turn, but some allocations were not captured. So
//! the test creates extra files until the next file will be on the right OST.

use crate::captured_clients::servers::{FSNAME, Servers, captured_nid, local_nid};
use client::{Client, Cred, MountOptions, OpenFlags};
use std::sync::Arc;
use wire::Fid;
use wire::striping::LovLayout;

/// The directory of the extra files.
pub(crate) const DIR_NAME: &str = "aside";

/// A mount with a directory that no captured client uses.
pub(crate) struct ExtraFiles {
    client: Arc<Client>,
    dir: Fid,
    /// Number of extra files.
    created: usize,
}

impl ExtraFiles {
    pub(crate) async fn start(servers: &Servers) -> ExtraFiles {
        let options = MountOptions::new(vec![local_nid(captured_nid(11))], FSNAME, 7);
        let client = servers.first_node().mount(options).await.unwrap();
        let cred = Cred::root();
        let mkdir = client.mkdir(&cred, client.root(), DIR_NAME.as_bytes(), 0o700);
        let dir = mkdir.await.unwrap().attr.fid;
        ExtraFiles {
            client,
            dir,
            created: 0,
        }
    }

    /// Creates files until the next file will be on the OST with this index (0 or 1).
    pub(crate) async fn advance_to(&mut self, servers: &Servers, ost: u64) {
        loop {
            servers.osts_ready().await;
            self.created += 1;
            let (name, cred) = (self.created.to_string(), Cred::root());
            let flags = OpenFlags::default();
            let create = self.client.create(&cred, self.dir, name.as_bytes(), 0o600, flags);
            let (found, file) = create.await.unwrap();
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
