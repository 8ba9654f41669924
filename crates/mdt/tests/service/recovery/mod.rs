//! Recovery of clients after a restart of the MDT: kept replies, replays, and the end of recovery.
//!
//! The index goes back to an earlier state, as after a crash. The requests pass through [`Front`],
//! which turns them into replays, so that these tests do not depend on the RPC layer's recovery.

mod components;
mod crash_index;
mod front;
mod kept_replies;
mod replays;

use std::sync::Arc;
use testbase::Wait;

use osd::clients::ClientRecords;
use rpc::{EndReason, KeptReply, Target};
use testbase::mds_client::Client;
use wire::format::bufs;
use wire::{LustreHandle, MDS_OPEN_HAS_EA, MDS_OPEN_HAS_OBJS, MdtBody, MdtRecCreate, Nid, WireStruct};

use self::{
    crash_index::{CrashIndex, Image},
    front::{Executed, FRONT, Front},
};
use crate::fixture::Fixture;

/// A file system with an MDT that can lose its last changes.
struct Crashing {
    f: Fixture,
    index: Arc<CrashIndex>,
    front: Arc<Front>,
}

impl Crashing {
    async fn new() -> Crashing {
        let index = CrashIndex::new();
        let f = Fixture::with_index(1, index.clone()).await;
        f.mdt.osts_ready(1).await;
        let front = Front::new(&f.mdt);
        f.rpc.add_target(front.clone());
        Crashing { f, index, front }
    }

    /// Connects a client that the MDT remembers.
    async fn client(&self) -> Arc<Client> {
        Client::connect_to(&self.f.rpc, Nid::LO, FRONT).await
    }

    /// Commits everything so far, and returns the contents of the disk.
    async fn synced(&self) -> Image {
        osd::Index::sync(&*self.index).await.unwrap();
        self.index.image()
    }

    /// Stops the MDT, and starts it with these contents of the disk. Its clients then recover.
    async fn crash(&mut self, disk: &Image) {
        self.front.end(EndReason::TargetStops).await;
        self.index = disk.restore();
        self.f.index = self.index.clone();
        self.f.crash().await;
        self.front.set_mdt(&self.f.mdt);
    }

    async fn recovered(&self) {
        self.f.mdt.recovered().await;
    }

    /// The record of the reply to a request; `None` if the store has none.
    fn kept(&self, request: &Executed) -> Option<KeptReply> {
        let records = ClientRecords::load(self.index.clone()).wait().unwrap();
        let mut replies = records
            .known(&[])
            .wait()
            .unwrap()
            .into_iter()
            .flat_map(|c| c.replies);
        replies.find(|kept| (kept.tag, kept.xid) == (request.tag, request.xid))
    }
}

/// The body in a reply to an open.
fn opened_body(reply: &rpc::Reply) -> MdtBody {
    MdtBody::from_bytes(&reply.bufs[bufs::INTENT_REPLY_BODY - 1]).unwrap()
}

/// An open as its client replays it: with the file, its layout and its handle from the reply.
fn open_to_replay(open: &Executed) -> Executed {
    let body = opened_body(&open.reply);
    let mut open = open.clone();
    let mut rec = MdtRecCreate::from_bytes(&open.bufs[bufs::OPEN_REC - 1]).unwrap();
    rec.cr_fid2 = body.mbo_fid1;
    rec.cr_open_handle_old = LustreHandle {
        cookie: body.mbo_open_handle.cookie,
    };
    rec.cr_flags_l |= (MDS_OPEN_HAS_EA | MDS_OPEN_HAS_OBJS) as u32;
    open.bufs[bufs::OPEN_REC - 1] = rec.to_bytes();
    open.bufs[bufs::OPEN_EA - 1] = open.reply.bufs[bufs::INTENT_REPLY_MD - 1].clone();
    open
}
