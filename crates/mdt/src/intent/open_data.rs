//! Data on the MDT with the replies to intents: the DOM bit in the lock of an open or lookup, with
//! the size, and for an open also the bytes of a small file. Then a client opens and reads the file
//! with one request.
//!
//! A lock of a writer has the mode PW. The DOM bit comes with the LAYOUT bit or alone: a client
//! uses the data under the lock, and may ask for the layout meanwhile. If the LAYOUT bit were in
//! another lock and its revocation waited for this lock, the client would wait for itself.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, Ordering::Relaxed},
};

use bytes::Bytes;
use ldlm::{GrantedLock, LockMode};
use osd::{ObjAttr, obdo};
use params::Param;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    DISP_OPEN_CREATE, Errno, Fid, HasTimes, LdlmReply, LustreMsgV2, MDS_FMODE_EXEC, MDS_FMODE_READ,
    MDS_INODELOCK_DOM, MDS_OPEN_TRUNC, MdtBody, NiobufRemote, OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT2_DOM_LVB,
    OBD_MD_DOM_SIZE, PtlrpcBody, WireStruct,
};

use super::{IntentResult, OPEN_REPLY_BUFS, open::OpenRequest};
use crate::{
    locks,
    namespace::OpenMode,
    store::Inode,
    target::{Mdt, precision},
};

/// DOM bit: data on the MDT.
const DOM: u64 = MDS_INODELOCK_DOM;
/// Maximum length of the data in a reply, bytes: the limit of Lustre's clients.
const DATA_MAX: usize = 64 << 10;

/// Whether an open grants the DOM bit: `mdt.*.dom_lock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DomLock {
    Never,
    /// If no lock conflicts.
    Try,
    /// Revokes conflicting locks.
    Always,
}

impl DomLock {
    /// All values with Lustre's names; the index of a value is its number.
    const ALL: [(DomLock, &str); 3] = [
        (DomLock::Never, "never"),
        (DomLock::Try, "trylock"),
        (DomLock::Always, "always"),
    ];
}

/// The settings of data with opens.
#[derive(Debug)]
pub(crate) struct DataWithOpen {
    /// `mdt.*.dom_lock`: an index of [`DomLock::ALL`].
    dom_lock: Arc<AtomicU8>,
    /// `mdt.*.dom_read_open`: whether replies have data.
    reads: Arc<AtomicBool>,
}

impl Default for DataWithOpen {
    /// As in Lustre.
    fn default() -> DataWithOpen {
        DataWithOpen {
            dom_lock: Arc::new(1.into()),
            reads: Arc::new(true.into()),
        }
    }
}

impl DataWithOpen {
    fn dom_lock(&self) -> DomLock {
        let known = DomLock::ALL.get(usize::from(self.dom_lock.load(Relaxed)));
        known.map_or(DomLock::Try, |(value, _)| *value)
    }

    /// The parameter `dom_lock`.
    pub(crate) fn dom_lock_param(&self) -> Param {
        let (shown, set) = (self.dom_lock.clone(), self.dom_lock.clone());
        let name = |number: u8| {
            DomLock::ALL
                .get(usize::from(number))
                .map_or("", |(_, name)| *name)
        };
        Param::read_write(
            move || name(shown.load(Relaxed)).to_owned(),
            move |text| {
                let text = text.trim();
                let number = (0..DomLock::ALL.len() as u8).find(|n| name(*n) == text || n.to_string() == text);
                set.store(number.ok_or("expected never, trylock or always")?, Relaxed);
                Ok(())
            },
        )
        .about("whether an open also locks the file's data on the MDT: never; trylock: if no lock conflicts; always: revokes conflicting locks")
    }

    /// The parameter `dom_read_open`.
    pub(crate) fn reads_param(&self) -> Param {
        Param::switch(self.reads.clone())
            .about("1: the reply to an open also has the data of a small file on the MDT, if the client has room for it")
    }
}

impl Mdt {
    /// Grants the lock of an open of a file without `MDS_OPEN_LOCK`: those of `bits` that are free,
    /// and the DOM bit for data on the MDT.
    pub(super) async fn grant_file_lock(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        (fid, inode): (Fid, &Inode),
        bits: u64,
    ) -> Result<GrantedLock, Errno> {
        let server = self.locks.server();
        let (client, cookie, res) = (&req.export, request.cookie, fid.res_id());
        let (required, optional) = match self.data_with_open.dom_lock() {
            _ if self.data_bit(req, inode) == 0 => (0, 0),
            DomLock::Never => (0, 0),
            DomLock::Try => (0, DOM),
            DomLock::Always => (DOM, 0),
        };
        if required | optional == 0 {
            return server.grant_to(client, cookie, res, LockMode::Pr, 0, bits).await;
        }
        let writes = request.flags.writes();
        let mode = if writes { LockMode::Pw } else { LockMode::Pr };
        let lock = server
            .grant_to(client, cookie, res, mode, required, bits | optional)
            .await?;
        let has = |bit: u64| lock.bits & bit != 0;
        match (has(DOM), has(locks::LAYOUT)) {
            (true, true) => Ok(lock),
            (true, false) if writes => server.reduce_granted(lock, DOM),
            (true, false) => self.without_data_alone(lock),
            // Another client uses the data. Without the data, a PW lock would only hinder others.
            (false, _) if writes => {
                server.cancel(client, &[lock.handle]);
                server.grant_to(client, cookie, res, LockMode::Pr, 0, bits).await
            }
            (false, _) => Ok(lock),
        }
    }

    /// The DOM bit if a file's data is on the MDT and the client can lock it with other bits; else
    /// 0.
    pub(super) fn data_bit(&self, req: &ServerRequest, inode: &Inode) -> u64 {
        let knows_data = req.export.has(OBD_CONNECT_LAYOUTLOCK) && req.export.has2(OBD_CONNECT2_DOM_LVB);
        match knows_data && inode.data_max().is_some() && self.data_with_open.dom_lock() != DomLock::Never {
            true => DOM,
            false => 0,
        }
    }

    /// A reader's lock, without the DOM bit if it has no LAYOUT bit.
    pub(super) fn without_data_alone(&self, lock: GrantedLock) -> Result<GrantedLock, Errno> {
        match lock.bits & (DOM | locks::LAYOUT) == DOM && lock.bits != DOM {
            true => self.locks.server().reduce_granted(lock, !DOM),
            false => Ok(lock),
        }
    }

    /// Puts the size and times of a file's data into the attributes, if this lock covers the data
    /// (`is_new`: the file has none). Returns the attributes of the data. After an error of the
    /// store, the reply has none: the client's next request for the data reports the error.
    pub(super) async fn put_data_size(
        &self,
        req: &ServerRequest,
        fid: Fid,
        lock: &GrantedLock,
        is_new: bool,
        body: &mut MdtBody,
    ) -> Option<ObjAttr> {
        if lock.bits & DOM == 0 {
            return None;
        }
        let attr = match is_new {
            false => self.store.data_attr(fid).await.ok()?,
            true => None,
        };
        let lvb = obdo::lvb(attr.as_ref());
        body.mbo_valid |= OBD_MD_DOM_SIZE;
        (body.mbo_dom_size, body.mbo_dom_blocks) = (lvb.lvb_size, lvb.lvb_blocks);
        let times = lvb.times().at(precision(req));
        body.set_times(body.times().with_data(times));
        Some(attr.unwrap_or_default())
    }

    /// Puts the size and times of a file's data into the result of an open, and the data if it
    /// fits, if the granted lock covers it.
    pub(super) async fn put_data(
        &self,
        req: &ServerRequest,
        fid: Fid,
        mode: OpenMode,
        body: &mut MdtBody,
        out: &mut IntentResult,
    ) {
        let is_new = out.disposition & DISP_OPEN_CREATE != 0;
        let Some(attr) = self.put_data_size(req, fid, &out.lock, is_new, body).await else {
            return;
        };
        let reads = mode.has(MDS_FMODE_READ | MDS_FMODE_EXEC) && !mode.has(MDS_OPEN_TRUNC);
        let data = match reads {
            true => self.data_for_reply(req, fid, &attr, out).await,
            false => Ok(Vec::new()),
        };
        let data = data.unwrap_or_default();
        let len: usize = data.iter().map(Bytes::len).sum();
        let niobuf = NiobufRemote {
            rnb_len: len as u32,
            ..NiobufRemote::default()
        };
        // The first two buffers of the reply come before these.
        let index = bufs::OPEN_REPLY_DATA - 2;
        out.bufs.resize(out.bufs.len().max(index + 1), Bytes::new());
        if let Some(buf) = out.bufs.get_mut(index) {
            let mut whole = Vec::with_capacity(NiobufRemote::SIZE + len);
            whole.extend_from_slice(&niobuf.to_bytes());
            data.iter().for_each(|piece| whole.extend_from_slice(piece));
            *buf = whole.into();
        }
    }

    /// All data of a file, if the client's buffer has room for it; else nothing.
    async fn data_for_reply(
        &self,
        req: &ServerRequest,
        fid: Fid,
        attr: &ObjAttr,
        out: &IntentResult,
    ) -> Result<Vec<Bytes>, Errno> {
        let wanted = self.data_with_open.reads.load(Relaxed) && out.lock.bits & locks::LAYOUT != 0;
        if !wanted || attr.size == 0 || attr.size > data_room(req.msg.repsize, &out.bufs) {
            return Ok(Vec::new());
        }
        let data = self.store.file_data(fid, 0..attr.size).await?;
        Ok(data.read(0..attr.size))
    }
}

/// The length of the data, in bytes, for which a client's buffer of `repsize` bytes has room beside
/// the other buffers of the reply to an open.
fn data_room(repsize: u32, others: &[Bytes]) -> u64 {
    let fixed = [PtlrpcBody::SIZE, LdlmReply::SIZE, NiobufRemote::SIZE];
    let lens = fixed.into_iter().chain(others.iter().map(Bytes::len));
    let header = LustreMsgV2::size_of_header(OPEN_REPLY_BUFS + 2);
    let used = lens.fold(header, |used, len| used + len.next_multiple_of(8));
    let room = (repsize as usize).saturating_sub(used) / 8 * 8;
    room.min(DATA_MAX) as u64
}

#[cfg(test)]
mod tests {
    use super::{DATA_MAX, DataWithOpen, DomLock, data_room};
    use bytes::Bytes;

    #[test]
    fn room_for_data_is_what_the_other_buffers_leave() {
        let others = [Bytes::from_static(&[0; 216]), Bytes::from_static(&[0; 3])];
        let none = (0..).find(|repsize| data_room(*repsize, &others) > 0);
        let least = none.unwrap_or_default();
        assert_eq!(data_room(least, &others), 8);
        assert_eq!(data_room(least + 7, &others), 8);
        assert_eq!(data_room(least + 4088, &others), 4096);
        assert_eq!(data_room(0, &others), 0);
        assert_eq!(data_room(u32::MAX, &others), DATA_MAX as u64);
    }

    #[test]
    fn dom_lock_has_lustres_names() {
        let (settings, registry) = (DataWithOpen::default(), params::Registry::default());
        let mut group = registry.group("mdt.x");
        group.add("dom_lock", settings.dom_lock_param());
        assert_eq!(settings.dom_lock(), DomLock::Try);
        let values = [
            ("always", DomLock::Always),
            ("0", DomLock::Never),
            (" trylock\n", DomLock::Try),
        ];
        for (text, value) in values {
            assert!(registry.set("mdt.x.dom_lock", text).is_ok());
            assert_eq!(settings.dom_lock(), value);
        }
        for text in ["3", "", "sometimes"] {
            assert!(registry.set("mdt.x.dom_lock", text).is_err());
        }
    }
}
