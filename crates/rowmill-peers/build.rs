//! Compiles the shims of engines that do not have a plain C interface.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "wiredtiger")]
    wiredtiger();
    #[cfg(feature = "faster")]
    faster::build();
}

#[cfg(feature = "wiredtiger")]
fn wiredtiger() {
    println!("cargo::rerun-if-changed=src/wiredtiger.c");
    cc::Build::new().file("src/wiredtiger.c").opt_level(3).compile("rowmill_wiredtiger");
    println!("cargo::rustc-link-lib=wiredtiger");
}

#[cfg(feature = "faster")]
mod faster {
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::{env, fs};

    /// The cargo package that contains the source and pins its checksum.
    const SOURCE: &str = "../../tools/faster";
    const FILES: [&str; 4] =
        ["core/address.cc", "core/lss_allocator.cc", "core/thread.cc", "environment/file_linux.cc"];
    /// Patched constants: file, original text, replacement.
    const CHANGED: [(&str, &str, &str); 3] = [
        // Log pages of 4 MiB. At least six pages are needed, four of which cannot change in place; with pages
        // of 32 MiB, half of a small memory would be unused.
        ("core/address.h", "kOffsetBits = 25", "kOffsetBits = 22"),
        // Overflow buckets in blocks of 1 MiB. The first two blocks of 64 MiB each would exceed the memory of
        // a small store.
        ("core/malloc_fixed_page_size.h", "kOffsetBits = 20", "kOffsetBits = 14"),
        // Device requests in flight. Opening a checkpoint makes 256 at once, and fails with room for 128.
        ("environment/file_linux.h", "kMaxEvents = 128", "kMaxEvents = 1024"),
    ];

    pub(super) fn build() {
        println!("cargo::rerun-if-changed=src/faster.cc");
        println!("cargo::rerun-if-changed={SOURCE}/Cargo.lock");
        let copy = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("faster");
        copy_folder(&source(), &copy);
        for (file, found, wanted) in CHANGED {
            let text = fs::read_to_string(copy.join(file)).expect("FASTER has its headers");
            assert_eq!(text.matches(found).count(), 1, "{file} of FASTER: {found:?} must occur exactly once");
            fs::write(copy.join(file), text.replace(found, wanted)).expect("OUT_DIR can be written");
        }
        cc::Build::new()
            .cpp(true)
            .std("c++17")
            .opt_level(3)
            .define("NDEBUG", None)
            .warnings(false)
            .include(&copy)
            .files(FILES.map(|file| copy.join(file)))
            .file("src/faster.cc")
            .compile("rowmill_faster");
        for library in ["stdc++fs", "tbb", "aio", "uuid"] {
            println!("cargo::rustc-link-lib={library}");
        }
    }

    /// The folder of the C++ source; cargo downloads it if missing.
    fn source() -> PathBuf {
        let cargo = env::var_os("CARGO").expect("set by cargo");
        let host = env::var("HOST").expect("set by cargo");
        let listed = Command::new(cargo)
            .args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &host])
            .args(["--manifest-path", &format!("{SOURCE}/Cargo.toml")])
            .output()
            .expect("cargo runs");
        let said = String::from_utf8_lossy(&listed.stderr);
        assert!(listed.status.success(), "cargo metadata of {SOURCE} failed: {said}");
        let metadata: serde_json::Value = serde_json::from_slice(&listed.stdout).expect("cargo writes JSON");
        let packages = metadata["packages"].as_array().expect("a list");
        let package =
            packages.iter().find(|package| package["name"] == "libfaster-sys").expect("it is named");
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        manifest.with_file_name("FASTER/cc/src")
    }

    fn copy_folder(from: &Path, to: &Path) {
        fs::create_dir_all(to).expect("OUT_DIR can be written");
        for entry in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
            let entry = entry.expect("a folder can be read");
            let target = to.join(entry.file_name());
            if entry.file_type().expect("a type").is_dir() {
                copy_folder(&entry.path(), &target);
            } else {
                let content = fs::read(entry.path()).expect("a file can be read");
                fs::write(target, content).expect("OUT_DIR can be written");
            }
        }
    }
}
