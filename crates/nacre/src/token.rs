//! The file of the MGS's join token: `join-token` in the directory of the MGS. A copy in the
//! directory of a target authorizes that target to register.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result};
use mgc::JoinToken;
use node::RandomSource;
use osd::files;

/// Name of the token's file.
pub(crate) const NAME: &str = "join-token";

/// The token in a target's directory, if any.
pub(crate) fn read(dir: &Path) -> Result<Option<JoinToken>> {
    let path = dir.join(NAME);
    match fs::read_to_string(&path) {
        Ok(text) => parse(&text, &path).map(Some),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// The token in the file of `nacre mkfs --token-file`.
pub(crate) fn read_file(path: &Path) -> Result<JoinToken> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text, path)
}

/// The token of the MGS in this directory. Creates a new one if there is none: in a directory that
/// an older version created, or after the administrator has removed the token to revoke it.
pub(crate) fn mgs_token(dir: &Path) -> Result<JoinToken> {
    if let Some(token) = read(dir)? {
        return Ok(token);
    }
    let token = generate()?;
    write(dir, &token)?;
    Ok(token)
}

/// Generates a random token.
pub(crate) fn generate() -> Result<JoinToken> {
    let bytes = RandomSource::system().bytes();
    Ok(JoinToken::new(bytes.context("cannot get random numbers")?))
}

/// Writes a token into a target's directory, readable by its owner only, and syncs the file.
pub(crate) fn write(dir: &Path, token: &JoinToken) -> Result<()> {
    let path = dir.join(NAME);
    let result = files::replace(
        &path,
        format!("{}\n", token.to_text()).as_bytes(),
        files::FILE_MODE,
    );
    result.with_context(|| format!("cannot write {}", path.display()))
}

fn parse(text: &str, path: &Path) -> Result<JoinToken> {
    let token = text.parse().map_err(anyhow::Error::msg);
    token.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn mgs_token_is_kept_and_recreated_when_missing() {
        let dir = tempfile::tempdir().unwrap();
        let first = mgs_token(dir.path()).unwrap();
        assert_eq!(mgs_token(dir.path()).unwrap(), first);
        let path = dir.path().join(NAME);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::remove_file(&path).unwrap();
        assert_ne!(mgs_token(dir.path()).unwrap(), first);
        fs::write(&path, "nonsense").unwrap();
        let why = format!("{:#}", mgs_token(dir.path()).unwrap_err());
        assert!(
            why.contains("join-token") && why.contains("64 hexadecimal"),
            "{why}"
        );
    }
}
