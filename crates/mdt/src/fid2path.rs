//! Finds the path of a FID (`lfs fid2path`): follows the recorded links up to the root directory in
//! the request.

use bytes::{BufMut, Bytes, BytesMut};
use rpc::Reply;
use wire::{Errno, Fid, GetinfoFid2path, KEY_FID2PATH, WireStruct};

use crate::store::{Store, links};

/// Offset of the value in the key's buffer, bytes.
const VALUE_OFFSET: usize = 16;
/// Maximum number of names in a path.
const DEPTH_MAX: usize = 4096;
/// Maximum size of the path buffer that a client may request, bytes: the limit of a reply.
const PATH_BUF_MAX: usize = 512 << 10;
/// Minimum size of the path buffer, bytes.
const PATH_BUF_MIN: usize = 3;

/// The part of a path that an MDT knows.
pub(crate) struct PathPart {
    /// The names from `top` down to the inode, with slashes between them.
    pub path: Vec<u8>,
    /// The inode with the first name's directory: the requested root, or a directory of another
    /// MDT.
    pub top: Fid,
    /// Whether the inode has a next link.
    has_next: bool,
}

/// The reply to `MDS_GET_INFO` with the key `fid2path`: the structure of the request, with the root
/// and the number of the next link, followed by the path in a buffer of the requested size.
/// `ENAMETOOLONG` if the path and a NUL do not fit; the client then repeats the request with a
/// larger buffer. If another MDT has a directory of the path, the status is `EREMOTE`: the path
/// begins below that directory, and the structure has its FID.
pub(crate) async fn answer(store: &Store, key: &[u8]) -> Result<Reply, Errno> {
    if wire::before_nul(key) != KEY_FID2PATH.as_bytes() {
        return Err(Errno::EOPNOTSUPP);
    }
    let value = key.get(VALUE_OFFSET..).ok_or(Errno::EINVAL)?;
    let mut gf = GetinfoFid2path::from_bytes(value)?;
    let requested_root = Fid::from_bytes(&value[GetinfoFid2path::SIZE..]).unwrap_or_default();
    let root = if requested_root.is_zero() {
        Fid::ROOT
    } else {
        requested_root
    };
    let path_buf_len = gf.gf_pathlen as usize;
    if !(PATH_BUF_MIN..=PATH_BUF_MAX).contains(&path_buf_len) {
        return Err(Errno::EOVERFLOW);
    }
    let PathPart { path, top, has_next } = path(store, gf.gf_fid, gf.gf_linkno, root).await?;
    if path.len() >= path_buf_len {
        return Err(Errno::ENAMETOOLONG);
    }
    gf.gf_fid = top;
    gf.gf_linkno += u32::from(has_next);
    let mut out = BytesMut::with_capacity(GetinfoFid2path::SIZE + path_buf_len);
    out.put_slice(&gf.to_bytes());
    out.put_slice(&path);
    out.resize(GetinfoFid2path::SIZE + path_buf_len, 0);
    let status = if top == root { 0 } else { Errno::EREMOTE.status() };
    Ok(Reply::new(vec![out.freeze()]).with_status(status))
}

/// The path of an inode below `root`, through its link number `link`, or through its last link if
/// it has fewer; up to the first directory that another MDT has. `ENOENT` if the inode is not below
/// `root`.
pub(crate) async fn path(store: &Store, fid: Fid, link: u32, root: Fid) -> Result<PathPart, Errno> {
    let mut names: Vec<Bytes> = Vec::new();
    let mut has_next = false;
    let mut current = fid;
    while current != root {
        let is_top = current.is_root() && store.find(current).await?.is_some();
        if is_top || names.len() >= DEPTH_MAX {
            return Err(Errno::ENOENT);
        }
        let inode = match store.find(current).await? {
            Some(inode) => inode,
            None if names.is_empty() => return Err(Errno::ENOENT),
            None => break,
        };
        let recorded = links::parse(&inode.links).links;
        let index = if names.is_empty() { link as usize } else { 0 };
        if names.is_empty() {
            has_next = index + 1 < recorded.len();
        }
        // A client requests link after link until the number in the answer stays the same. If a
        // link was removed meanwhile, the requested number may be too high: the last link ends the
        // client's loop.
        let found = recorded.get(index).or(recorded.last());
        let (parent, name) = found.cloned().ok_or(Errno::ENOENT)?;
        names.push(name);
        current = parent;
    }
    names.reverse();
    Ok(PathPart {
        path: names.join(&b'/'),
        top: current,
        has_next,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use testbase::Wait;

    use super::answer;
    use crate::{
        cred::Cred,
        namespace::{NewInode, create, link, make_root},
        store::Store,
    };
    use osd::MemoryIndex;
    use wire::{Errno, Fid, GetinfoFid2path, Time, WireStruct};

    /// The path and the number of the next link in the answer.
    fn fid2path(store: &Store, fid: Fid, gf_linkno: u32, root: Fid) -> Result<(String, u32), Errno> {
        fid2path_with_buf(store, fid, gf_linkno, root, 4096)
    }

    fn fid2path_with_buf(
        store: &Store,
        fid: Fid,
        gf_linkno: u32,
        root: Fid,
        gf_pathlen: u32,
    ) -> Result<(String, u32), Errno> {
        let gf = GetinfoFid2path {
            gf_fid: fid,
            gf_recno: u64::MAX,
            gf_linkno,
            gf_pathlen,
        };
        let key = [
            b"fid2path\0\0\0\0\0\0\0\0",
            &gf.to_bytes()[..],
            &root.to_bytes()[..],
        ]
        .concat();
        let reply = answer(store, &key).wait()?.bufs.remove(0);
        assert_eq!(reply.len(), 32 + gf_pathlen as usize);
        let text = String::from_utf8(wire::before_nul(&reply[32..]).to_vec()).unwrap();
        Ok((text, GetinfoFid2path::from_bytes(&reply).unwrap().gf_linkno))
    }

    #[test]
    fn path_longer_than_the_buffer_is_enametoolong() {
        let store = Store::new(Arc::new(MemoryIndex::default()));
        make_root(&store, (0, 0), Time::default()).wait().unwrap();
        let name = [b'n'; 200];
        let (mut dir, depth) = (Fid::ROOT, 30);
        for oid in 1..=depth {
            let node = NewInode {
                fid: Fid::new(0x2_0000_0402, oid, 0),
                mode: 0o040755,
                ..NewInode::default()
            };
            create(&store, &Cred::root(), dir, &name, &node).wait().unwrap();
            dir = node.fid;
        }
        let len = depth * 201 - 1;
        let path_len =
            |buf_len| fid2path_with_buf(&store, dir, 0, Fid::ROOT, buf_len).map(|(path, _)| path.len());
        assert_eq!(path_len(4096), Err(Errno::ENAMETOOLONG));
        assert_eq!(path_len(len), Err(Errno::ENAMETOOLONG));
        assert_eq!(path_len(len + 1), Ok(len as usize));
        assert_eq!(path_len(8192), Ok(len as usize));
        for invalid_len in [0, 2, u32::MAX] {
            assert_eq!(path_len(invalid_len), Err(Errno::EOVERFLOW));
        }
    }

    #[test]
    fn each_link_has_a_path() {
        let store = Store::new(Arc::new(MemoryIndex::default()));
        make_root(&store, (0, 0), Time::default()).wait().unwrap();
        let (dir, file) = (Fid::new(0x2_0000_0402, 1, 0), Fid::new(0x2_0000_0402, 2, 0));
        let node = |fid, mode| NewInode {
            fid,
            mode,
            ..NewInode::default()
        };
        create(&store, &Cred::root(), Fid::ROOT, b"dir1", &node(dir, 0o040755))
            .wait()
            .unwrap();
        create(&store, &Cred::root(), dir, b"file1", &node(file, 0o100644))
            .wait()
            .unwrap();
        link(&store, &Cred::root(), file, Fid::ROOT, b"link1", Time::default())
            .wait()
            .unwrap();
        assert_eq!(
            fid2path(&store, file, 0, Fid::ROOT).unwrap(),
            ("dir1/file1".into(), 1)
        );
        assert_eq!(fid2path(&store, file, 1, Fid::ROOT).unwrap(), ("link1".into(), 1));
        assert_eq!(fid2path(&store, file, 0, dir).unwrap(), ("file1".into(), 1));
        assert_eq!(fid2path(&store, file, 1, dir).unwrap_err(), Errno::ENOENT);
        assert_eq!(
            fid2path(&store, Fid::ROOT, 0, Fid::ROOT).unwrap(),
            (String::new(), 0)
        );
        assert_eq!(
            fid2path(&store, Fid::new(0x2_0000_0402, 9, 0), 0, Fid::ROOT).unwrap_err(),
            Errno::ENOENT
        );
        assert_eq!(answer(&store, b"fid2path").wait().unwrap_err(), Errno::EINVAL);
        assert_eq!(answer(&store, b"what").wait().unwrap_err(), Errno::EOPNOTSUPP);
    }
}
