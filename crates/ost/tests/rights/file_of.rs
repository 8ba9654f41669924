//! The file that an object belongs to, as clients ask for it.

use bytes::Bytes;
use wire::{Errno, Fid, GetinfoFid2path, OST_GET_INFO, WireStruct};

use crate::{
    fixture::{Client, How},
    with_object,
};

/// What the target says of an object's file.
async fn file_of(client: &Client, object: Fid) -> Result<Fid, Errno> {
    let asked = GetinfoFid2path {
        gf_fid: object,
        ..GetinfoFid2path::default()
    };
    let mut key = b"fid2path\0\0\0\0\0\0\0\0".to_vec();
    key.extend_from_slice(&asked.to_bytes());
    let room = Bytes::copy_from_slice(&(GetinfoFid2path::SIZE as u32).to_le_bytes());
    let reply = client.call(OST_GET_INFO, vec![key.into(), room]).await;
    Ok(reply.map_err(|e| e.errno())?.get::<GetinfoFid2path>(1)?.gf_fid)
}

#[tokio::test]
async fn an_object_knows_its_file_once_it_is_written() {
    let (_node, _ost, _osp, client, object) = with_object().await;
    assert_eq!(file_of(&client, object).await, Err(Errno::ENODATA));
    let file = Fid::new(0x2_0000_0401, 2, 0);
    let how = How {
        parent: Some(file),
        ..How::default()
    };
    client
        .write_how(object, &[(0, Bytes::from_static(b"x"))], how)
        .await;
    assert_eq!(file_of(&client, object).await, Ok(file));
    let never_made = Fid::new(object.f_seq, 9999, 0);
    assert_eq!(file_of(&client, never_made).await, Err(Errno::ENOENT));
    assert_eq!(file_of(&client, file).await, Err(Errno::ENOENT));
    let cut = client
        .call(OST_GET_INFO, vec![Bytes::from_static(b"fid2path\0")])
        .await;
    assert_eq!(cut.map_err(|e| e.errno()).err(), Some(Errno::EINVAL));
}
