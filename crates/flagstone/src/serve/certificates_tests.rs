//! Files that are as they should be, and what is said of others.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::*;

/// A folder with a certificate and its key.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("flagstone-certificates-{name}-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).expect("a folder");
        folder.make("node");
        folder
    }

    fn make(&self, name: &str) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        self.put(&format!("{name}.pem"), &certificate, 0o644);
        self.put(&format!("{name}.key"), &key.serialize_pem(), 0o600);
    }

    fn put(&self, name: &str, text: &str, mode: u32) {
        let path = self.0.join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("changed");
    }

    fn load(&self, certificate: &str, key: &str, ca: Option<&str>) -> Result<(), String> {
        let (certificate, key) = (self.0.join(certificate), self.0.join(key));
        let client_ca = ca.map(|ca| self.0.join(ca));
        let files = TlsFiles {
            certificate: &certificate,
            key: &key,
            client_ca: client_ca.as_deref(),
        };
        match load(&files, true) {
            Ok(tls) => {
                assert!(tls.is_required());
                Ok(())
            }
            Err(error) => Err(format!("{error}; {}", error.next_step)),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn good_files_are_taken() {
    let folder = Folder::new("good");
    assert_eq!(folder.load("node.pem", "node.key", None), Ok(()));
    assert_eq!(
        folder.load("node.pem", "node.key", Some("node.pem")),
        Ok(())
    );
    let key = fs::read_to_string(folder.0.join("node.key")).expect("read");
    for mode in [0o400, 0o640, 0o440] {
        folder.put("node.key", &key, mode);
        assert_eq!(
            folder.load("node.pem", "node.key", None),
            Ok(()),
            "{mode:o}"
        );
    }
}

#[test]
fn what_is_wrong_is_said_with_its_file() {
    let folder = Folder::new("wrong");
    folder.make("other");
    folder.put("empty", "", 0o600);
    folder.put("long", &"x".repeat(1 << 21), 0o600);
    fs::create_dir_all(folder.0.join("folder")).expect("a folder");
    for (certificate, key, ca, said) in [
        ("missing", "node.key", None, "reading the certificate, "),
        ("node.pem", "missing", None, "key, "),
        (
            "node.pem",
            "node.key",
            Some("missing"),
            "the authority of clients, ",
        ),
        ("folder", "node.key", None, "it is not a file"),
        ("node.pem", "folder", None, "it is not a file"),
        ("long", "node.key", None, "longer than 1 MiB"),
        ("empty", "node.key", None, "there is no certificate in it"),
        ("node.pem", "empty", None, "there is no private key in it"),
        ("node.pem", "other.key", None, "another certificate"),
        (
            "node.pem",
            "node.key",
            Some("empty"),
            "no certificate in it",
        ),
    ] {
        let error = folder.load(certificate, key, ca).expect_err(said);
        assert!(error.contains(said), "{error}");
        assert!(error.contains(&folder.0.display().to_string()), "{error}");
    }
}

#[test]
fn a_key_that_others_may_read_is_refused() {
    let folder = Folder::new("modes");
    let key = fs::read_to_string(folder.0.join("node.key")).expect("read");
    for mode in [0o644, 0o604, 0o602, 0o660, 0o620] {
        folder.put("node.key", &key, mode);
        let error = folder
            .load("node.pem", "node.key", None)
            .expect_err("others may read it");
        assert!(
            error.contains(&format!("its mode is {mode:03o}")),
            "{error}"
        );
        assert!(error.contains("chmod 600"), "{error}");
    }
}

#[test]
fn an_end_that_is_near_or_over_is_warned_of() {
    let validity = Validity {
        from_s: 0,
        until_s: 100 * 86_400,
    };
    let said = |day: i64| warning(validity, day * 86_400).unwrap_or_default();
    assert_eq!(said(50), "");
    assert!(said(90).starts_with("expires in 10 days"));
    assert!(said(103).starts_with("has expired 3 days ago"));
    assert!(said(-1).starts_with("is not good yet"));
}
