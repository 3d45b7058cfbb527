// Unpack Chromium from its npm package into TMPDIR, once, and print its path.
import chromium from "@sparticuz/chromium";

console.log(await chromium.executablePath());
