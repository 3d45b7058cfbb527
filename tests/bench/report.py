def write(results, folder):
    return folder
